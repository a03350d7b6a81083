// The page of search results shows under each page or section a sentence that has the words.

/** A word without the ends that English gives it, so that "tiles" finds "tile". */
const stem_of = (word) => (word.length > 4 ? word.replace(/(?:ies|ing|ed|es|s|e|y)$/, "") : word);

/**
 * The sentence of some texts, [name of the section, text], with most of the words, else null. Texts
 * of the section with this name count if there are some, else all.
 */
function sentence_of(texts, name, words) {
  const own = texts.filter(([section]) => section === name),
    stems = words.map((word) => stem_of(word.toLowerCase()));
  let best = null,
    most = 0;
  for (const [, text] of own.length ? own : texts)
    for (const sentence of text.split(/(?<=[.?!])\s+(?=["“(]?[A-Z`])/)) {
      const lower = ` ${sentence.toLowerCase()}`,
        // a word counts more where it begins one, and a whole sentence more than a label
        at = (stem) => (new RegExp(`[^\\p{L}\\p{N}]${stem}`, "u").test(lower) ? 2 : lower.includes(stem) ? 1 : 0),
        found = stems.reduce((sum, stem) => sum + at(stem), 0),
        score = found && found + (/[.?!]$/.test(sentence) ? 0.5 : 0);
      if (score > most) [best, most] = [sentence, score];
    }
  return best ?? (own.length ? own[0][1].split(/(?<=[.?!])\s/)[0] : null);
}

/** A sentence of at most some letters around its first word that was looked for. */
function shortened(sentence, words, letters = 260) {
  if (sentence.length <= letters) return sentence;
  const lower = sentence.toLowerCase(),
    places = words.map((word) => lower.indexOf(stem_of(word.toLowerCase()))),
    first = Math.max(0, Math.min(...places.filter((place) => place >= 0), sentence.length)),
    start = first > letters / 2 ? sentence.indexOf(" ", first - letters / 2) + 1 : 0,
    end = sentence.lastIndexOf(" ", start + letters);
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
    new MutationObserver((changes) => {
      for (const added of changes.flatMap((change) => [...change.addedNodes])) {
        if (added.nodeName !== "LI" || added.querySelector(".context")) continue;
        const [page, name = ""] = added.querySelector("a").getAttribute("href").split("#"),
          found = sentence_of(lab_texts[page.replace(/\.html.*$/, "")] ?? [], name, words);
        if (found === null) continue;
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
        added.append(line);
      }
    }).observe(results, { childList: true, subtree: true });
  });
