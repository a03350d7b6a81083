// The page of search results shows under each page or section a sentence that has the words.

/** A word without the ends that English gives it, so that "tiles" finds "tile". */
const stem_of = (word) => (word.length > 4 ? word.replace(/(?:ies|ing|ed|es|s|e|y)$/, "") : word);

const sentences_in = (text) => text.split(/(?<=[.?!])\s+(?=["“(]?[A-Z`])/);

/** The first whole sentence of some texts. */
const first_in = (texts) => {
  const all = texts.flatMap(([, text]) => sentences_in(text));
  return all.find((each) => /.{30}[.?!]$/.test(each)) ?? all[0];
};

/**
 * The sentence of some texts, each [name of its section, text], with most of the words; the first
 * one where only code and headings have them.
 */
function sentence_of(texts, words) {
  const stems = words.map((word) => stem_of(word.toLowerCase()));
  let best,
    most = 0;
  for (const [, text] of texts)
    for (const sentence of sentences_in(text)) {
      // a word counts more where it begins one, and a whole sentence more than a label
      const lower = ` ${sentence.toLowerCase()}`,
        begins = stems.filter((stem) => new RegExp(`[^\\p{L}\\p{N}]${stem}`, "u").test(lower)),
        found = begins.length + stems.filter((stem) => lower.includes(stem)).length,
        score = found && found + (/[.?!]$/.test(sentence) ? 0.5 : 0);
      if (score > most) [best, most] = [sentence, score];
    }
  return best ?? first_in(texts);
}

/** A sentence of at most some letters around its first word that was looked for. */
function shortened(sentence, words, letters = 260) {
  if (sentence.length <= letters) return sentence;
  const lower = sentence.toLowerCase(),
    places = words.map((word) => lower.indexOf(stem_of(word.toLowerCase()))),
    first = Math.max(0, Math.min(...places.filter((place) => place >= 0), sentence.length)),
    start = first > letters / 2 ? sentence.indexOf(" ", first - letters / 2) + 1 : 0,
    last = start + letters,
    end = last < sentence.length ? sentence.lastIndexOf(" ", last) : sentence.length;
  return `${start ? "… " : ""}${sentence.slice(start, end)}${end < sentence.length ? " …" : ""}`;
}

if (typeof document !== "undefined")
  document.addEventListener("DOMContentLoaded", () => {
    const query = new URLSearchParams(location.search).get("q") ?? "",
      words = query.split(/[^\p{L}\p{N}_]+/u).filter(Boolean),
      results = document.getElementById("search-results");
    if (words.length === 0 || results === null) return;
    const stems = words.map(stem_of).join("|"),
      marked = new RegExp(`(?<![\\p{L}\\p{N}])((?:${stems})[\\p{L}\\p{N}]*)`, "giu");
    /** Puts a sentence under a result. */
    const add_sentence = (result) => {
      if (result.querySelector(".context")) return;
      const [page, name = ""] = result.querySelector("a").getAttribute("href").split("#"),
        texts = lab_texts[page.replace(/\.html.*$/, "")] ?? [],
        own = texts.filter(([section]) => section === name),
        // what a name of the reference does, its first sentence says
        is_name = own.length > 0 && result.querySelector("a + span") !== null,
        found = is_name ? first_in(own) : sentence_of(name && own.length ? own : texts, words);
      if (!found) return;
      const line = document.createElement("p");
      line.className = "context";
      shortened(found, words)
        .split(marked)
        .forEach((part, i) => {
          const mark = document.createElement("span");
          mark.className = "highlighted";
          mark.textContent = part;
          line.append(i % 2 ? mark : part);
        });
      result.append(line);
    };
    const update = () => results.querySelectorAll("ul.search > li").forEach(add_sentence);
    new MutationObserver(update).observe(results, { childList: true, subtree: true });
    update();
  });
