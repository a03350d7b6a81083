// Tables whose rows a reader orders: each head of a column is a button.

/** A cell's text as a number, if it begins as one. @param {string} text */
export function number_in(text) {
  const found = /^[<>≤≥]?\s*([-+−]?\d[\d,\s]*(?:\.\d+)?(?:e[-+]?\d+)?)/i.exec(text.trim());
  return found ? Number(found[1].replace("−", "-").replace(/[,\s]/g, "")) : null;
}

/**
 * The order of texts, smallest first. If at least half of the texts are numbers, these are ordered
 * by size, and other texts come last. @param {string[]} texts @param {boolean} down  largest first
 */
export function order_of(texts, down) {
  const numbers = texts.map(number_in),
    known = numbers.filter((x) => x !== null).length;
  const keys = 2 * known >= texts.length ? numbers : texts.map((text) => text.trim() || null);
  const compare = (/** @type {any} */ a, /** @type {any} */ b) =>
    typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  return texts
    .map((_, i) => i)
    .sort((i, j) => {
      if (keys[i] === null || keys[j] === null)
        return Number(keys[i] === null) - Number(keys[j] === null) || i - j;
      return (down ? compare(keys[j], keys[i]) : compare(keys[i], keys[j])) || i - j;
    });
}

const FEWEST = 3; // rows worth ordering

/** @param {HTMLTableElement} table */
export function mount_sort(table) {
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])],
    body = table.tBodies[0];
  const cells = [...table.rows].flatMap((row) => [...row.cells]);
  const merged = cells.some((cell) => cell.rowSpan > 1 || cell.colSpan > 1);
  if (!body || table.tHead?.rows.length !== 1 || body.rows.length < FEWEST || merged) return;
  heads.forEach((head, column) => {
    if (head.tagName !== "TH" || !head.textContent?.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "lab-sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const rows = [...body.rows],
        texts = rows.map((row) => row.cells[column]?.textContent ?? "");
      body.append(...order_of(texts, down).map((i) => rows[i]));
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
}
