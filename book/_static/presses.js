// What the theme's buttons do. mend.py has taken this out of their attributes, in which a content
// security policy would refuse it.
document.addEventListener("click", (event) => {
  const button = /** @type {Element} */ (event.target).closest("[data-press]");
  if (button) globalThis[button.dataset.press]();
});
