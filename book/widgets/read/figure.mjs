// Shows a figure's values at the pointer or by arrow keys, and enlarges the figure. Without
// JavaScript the page has the picture alone.
import { element } from "../elements.mjs";

/**
 * @typedef {{name: string, panel: string, x: string, y: string, values: string[][],
 *   places: number[][]}} Series  places: of the wide and of the narrow picture, in pairs
 * @typedef {{series: number, value: number}} At
 */

const WHOLE = 1e4, // of a picture's width and height
  NEAR = 28, // pixels from the pointer
  ZOOMS = [1, 1.5, 2, 3, 4, 6];

/** What a value is, in words. @param {Series} series @param {number} value */
export function words_of({ name, panel, x, y, values }, value) {
  const [at_x, at_y, more] = values[value];
  const said = (/** @type {string} */ label, /** @type {string} */ number) =>
    label ? `${label} ${number}` : number;
  const parts = [said(x, at_x), said(y, at_y)];
  if (more !== undefined) parts.push(`value ${more}`);
  const titles = [panel, name].filter((text) => text !== "");
  return `${titles.length ? `${titles.join(", ")}: ` : ""}${parts.join("; ")}`;
}

/**
 * The value nearest to a place, or null if none is near.
 * @param {Series[]} series @param {number} picture  0 for the wide one, 1 for the narrow
 * @param {{left: number, top: number, width: number, height: number}} place  in pixels
 * @returns {At | null}
 */
export function nearest(series, picture, { left, top, width, height }) {
  let best = NEAR,
    found = null;
  series.forEach(({ places }, i) => {
    const all = places[picture];
    for (let k = 0; k < all.length; k += 2) {
      const across = (all[k] / WHOLE) * width - left,
        down = (all[k + 1] / WHOLE) * height - top;
      const far = Math.hypot(across, down);
      if (far < best) {
        best = far;
        found = { series: i, value: k / 2 };
      }
    }
  });
  return found;
}

/**
 * The value that an arrow key leads to.
 * @param {Series[]} series @param {At} at @param {string} key
 */
export function stepped(series, at, key) {
  const along = { ArrowRight: 1, ArrowLeft: -1 }[key],
    across = { ArrowDown: 1, ArrowUp: -1 }[key];
  const clamp = (/** @type {number} */ i, /** @type {number} */ n) =>
    Math.max(0, Math.min(i, n - 1));
  if (along) return { ...at, value: clamp(at.value + along, series[at.series].values.length) };
  if (!across) return null;
  const next = clamp(at.series + across, series.length);
  return { series: next, value: clamp(at.value, series[next].values.length) };
}

/** @param {HTMLImageElement} image @param {() => Promise<Series[]>} load */
export function mount_figure(image, load) {
  const picture = /** @type {HTMLElement} */ (image.closest("picture"));
  const ring = element("span", { class: "lab-ring", hidden: true }),
    bubble = element("span", { class: "lab-bubble", hidden: true, "aria-hidden": "true" });
  const box = element("span", { class: "lab-figure" });
  (picture.closest("a") ?? picture).replaceWith(box); // a link would only lead to the picture
  box.append(picture, ring, bubble);
  const number = image.closest("figure")?.querySelector(".caption-number")?.textContent;
  const button = element(
    "button",
    { type: "button", class: "lab-button lab-explore" },
    `Explore ${number?.trim().replace(/\.$/, "") ?? "this figure"}`,
  );
  box.after(button);
  /** @type {Series[]} */
  let series = [];
  /** @type {At} */
  let at = { series: 0, value: -1 };
  let asked = false;
  const begin = async () => {
    if (asked) return;
    asked = true;
    series = await load().catch(() => []);
  };
  const version = () => (image.currentSrc.includes(".narrow.") ? 1 : 0);
  /** @param {At | null} to */
  const show = (to) => {
    ring.hidden = bubble.hidden = to === null;
    if (to === null) return "";
    at = to;
    const [x, y] = series[at.series].places[version()].slice(2 * at.value, 2 * at.value + 2);
    const share = (/** @type {number} */ n) => `${(100 * n) / WHOLE}%`;
    for (const made of [ring, bubble]) Object.assign(made.style, { left: share(x), top: share(y) });
    bubble.classList.toggle("lab-left", x > WHOLE / 2);
    bubble.classList.toggle("lab-above", y > WHOLE / 2);
    const words = words_of(series[at.series], at.value);
    bubble.textContent = words;
    return words;
  };
  box.addEventListener("pointerenter", begin);
  box.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    const { left, top, width, height } = image.getBoundingClientRect();
    const place = { left: event.clientX - left, top: event.clientY - top, width, height };
    show(nearest(series, version(), place));
  });
  box.addEventListener("pointerleave", () => show(null));
  button.addEventListener("click", async () => {
    await begin();
    const step = (/** @type {string} */ key) => {
      const to = series.length ? stepped(series, at, key) : null;
      return to && show(to);
    };
    explore(image, box, step).addEventListener("close", () => {
      show(null);
      button.before(box);
      button.focus();
    });
  });
}

/**
 * A window with the figure, as large as its reader wants.
 * @param {HTMLImageElement} image @param {HTMLElement} box
 * @param {(key: string) => string | null} step  goes to another value and returns its words
 */
function explore(image, box, step) {
  const said = element("p", { role: "status", class: "lab-status" });
  said.textContent = "Arrow keys go from value to value, + and − change the size.";
  const view = element("div", {
    class: "lab-view",
    tabIndex: 0,
    role: "application",
    "aria-label": `Figure: ${image.alt}`,
  });
  const press = (/** @type {string} */ text, /** @type {string} */ label) =>
    element("button", { type: "button", class: "lab-button", "aria-label": label }, text);
  const smaller = press("−", "Smaller"),
    larger = press("+", "Larger"),
    close = press("Close", "Close");
  const dialog = element(
    "dialog",
    { class: "lab-dialog", "aria-label": "Figure" },
    element("div", { class: "lab-form" }, smaller, larger, close),
    said,
    view,
  );
  view.append(box);
  let zoom = 0;
  const resize = (/** @type {number} */ by) => {
    const [x, y] = [view.scrollLeft + view.clientWidth / 2, view.scrollTop + view.clientHeight / 2];
    const before = ZOOMS[zoom];
    zoom = Math.max(0, Math.min(zoom + by, ZOOMS.length - 1));
    const grown = ZOOMS[zoom] / before;
    box.style.width = `${100 * ZOOMS[zoom]}%`;
    view.scrollTo(x * grown - view.clientWidth / 2, y * grown - view.clientHeight / 2);
  };
  smaller.addEventListener("click", () => resize(-1));
  larger.addEventListener("click", () => resize(1));
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    box.style.width = "";
    dialog.remove();
  });
  view.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const by = { "+": 1, "=": 1, "-": -1 }[event.key];
    const words = by ? null : step(event.key);
    if (by) resize(by);
    else if (words === null) return;
    else said.textContent = words;
    event.preventDefault();
    box.querySelector(".lab-ring")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  document.body.append(dialog);
  dialog.showModal();
  view.focus();
  return dialog;
}
