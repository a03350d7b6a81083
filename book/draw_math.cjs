// Draws formulas as HTML, by the MathJax of a folder: node draw_math.cjs FOLDER. The input is a
// list of [TeX, whether it stands alone]; the output has the formulas and the style that they need.
const mathjax = process.argv[2];
globalThis.MathJax = {
  loader: {
    paths: { mathjax },
    load: ["input/tex", "output/chtml", "a11y/assistive-mml", "adaptors/liteDOM"],
    require,
  },
  startup: { typeset: false },
  chtml: { fontURL: "math" },
  tex: {
    packages: { "[-]": ["noerrors", "noundefined"] },
    formatError: (_, error) => {
      throw error;
    },
  },
};
require(`${mathjax}/startup.js`);

/** A formula as HTML; an error names the formula. */
function drawn([tex, display]) {
  try {
    // The width is that of no page, because MathJax breaks no lines.
    const size = { em: 16, ex: 8, containerWidth: 1e6 };
    return MathJax.startup.adaptor.outerHTML(MathJax.tex2chtml(tex, { display, ...size }));
  } catch (error) {
    throw new Error(`${tex}: ${error.message}`);
  }
}

MathJax.startup.promise
  .then(() => {
    const formulas = JSON.parse(require("fs").readFileSync(0, "utf8")).map(drawn);
    const style = MathJax.startup.adaptor.textContent(MathJax.chtmlStylesheet());
    console.log(JSON.stringify({ formulas, style }));
  })
  .catch((error) => {
    console.error(error.message);
    process.exit(1);
  });
