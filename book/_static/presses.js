// Calls what the theme's buttons do. mend.py took these calls out of the buttons' attributes, in
// which a content security policy would refuse them.
document.addEventListener("click", (event) => {
  const button = /** @type {Element} */ (event.target).closest("[data-press]");
  if (button) globalThis[button.dataset.press]();
});

// Opens the lids around what the address names, for browsers that do not.
function open_lids() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let lid = named?.closest("details"); lid; lid = lid.parentElement.closest("details"))
    lid.open = true;
  named?.scrollIntoView();
}
addEventListener("hashchange", open_lids);
if (location.hash) open_lids();
