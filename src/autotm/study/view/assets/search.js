// Finding tensors by a part of their names.
const searchField = document.getElementById("search");
const foundText = document.getElementById("found");
const lowerNames = tensors.name.map((name) => name.toLowerCase());
let nextFound = 0;

const search = () => {
  const text = searchField.value.trim().toLowerCase();
  shown.found = [];
  nextFound = 0;
  if (text) {
    const exact = lowerNames.indexOf(text);
    if (exact >= 0) shown.found.push(exact);
    lowerNames.forEach((name, tensor) => {
      if (tensor !== exact && name.includes(text)) shown.found.push(tensor);
    });
  }
  shown.kept = undefined;
  foundText.textContent = text ? `${countText(shown.found.length, "tensor")} found` : "";
  redraw({ isMoved: false });
};
const keepNextFound = () => {
  if (!shown.found.length) return;
  const place = nextFound % shown.found.length;
  nextFound = place + 1;
  foundText.textContent = `${place + 1} of ${shown.found.length.toLocaleString("en")}`;
  keep(shown.found[place]);
  showTensor(shown.found[place]);
  redraw();
};
