// What the theme's buttons do, which mend.py has taken out of the pages' attributes: a page then has
// no script that a content security policy would refuse.
document.addEventListener("click", (event) => {
  const button = /** @type {Element} */ (event.target).closest("[data-press]");
  if (button) globalThis[button.dataset.press]();
});
