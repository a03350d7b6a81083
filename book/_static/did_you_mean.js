// For a word that no page has, the page of search results offers the nearest word of the book.

/** How many letters to add, drop, change or swap with the next to make b of a. */
function distance(a, b) {
  let before = [],
    row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; ++i) {
    const next = [i];
    for (let j = 1; j <= b.length; ++j) {
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        next[j] = Math.min(next[j], before[j - 2] + 1);
    }
    [before, row] = [row, next];
  }
  return row[b.length];
}

/**
 * The query with each unknown word replaced by the nearest of the book's words, which stand in the
 * order of how often they occur; null if no word is replaced.
 */
function did_you_mean(query, words) {
  const mended = query.replace(/[a-z][a-z0-9_]{3,}/gi, (typed) => {
    const word = typed.toLowerCase();
    if (words.some((known) => known.startsWith(word))) return typed;
    const most = word.length < 6 ? 1 : 2;
    let best = null,
      least = most + 1;
    for (const known of words) {
      if (Math.abs(known.length - word.length) >= least) continue;
      const found = distance(word, known);
      if (found < least) [best, least] = [known, found];
    }
    return best ?? typed;
  });
  return mended === query ? null : mended;
}

if (typeof document !== "undefined")
  document.addEventListener("DOMContentLoaded", () => {
    const query = new URLSearchParams(location.search).get("q") ?? "",
      mended = did_you_mean(query, lab_words);
    const results = document.getElementById("search-results");
    if (mended === null || results === null) return;
    const line = document.createElement("p"),
      link = document.createElement("a");
    link.href = `?q=${encodeURIComponent(mended)}`;
    link.textContent = mended;
    line.setAttribute("role", "status");
    line.append("Did you mean ", link, "?");
    results.before(line);
  });
