// Calls what the theme's buttons do. mend.py took these calls out of the buttons' attributes, in
// which a content security policy would refuse them.
document.addEventListener("click", (event) => {
  const button = /** @type {Element} */ (event.target).closest("[data-press]");
  if (button) globalThis[button.dataset.press]();
});
