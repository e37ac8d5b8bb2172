const chosen = {};
function show() {
  for (const part of document.querySelectorAll("[data-model], [data-kind]")) {
    part.hidden = Object.entries(chosen).some(([name, value]) => value && name in part.dataset && part.dataset[name] !== value);
  }
}
for (const select of document.querySelectorAll("select")) {
  select.addEventListener("change", () => { chosen[select.name] = select.value; show(); });
  chosen[select.name] = select.value;  // browsers restore what was chosen before a reload
}
document.querySelector("form").hidden = false;
show();
