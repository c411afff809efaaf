// Draw once a frame at most, and only what is due: everything, or from what was chosen up, or what is at the cursor.
const LAYERS = [drawBase, drawChosen, drawOverlay];
const [ALL, CHOSEN, CURSOR] = LAYERS.keys();
let due;
const redraw = (from = ALL) => {
  const isWaiting = due !== undefined;
  due = Math.min(due ?? from, from);
  if (isWaiting) return;
  requestAnimationFrame(() => {
    LAYERS.slice(due).forEach((draw) => draw());
    due = undefined;
    showFacts();
  });
};

readColors();
showWords();
showFacts();
listen();
LAYERS.forEach((draw) => draw());
new ResizeObserver(() => redraw()).observe(stage);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColors();
  redraw();
});
// For tests and consoles: what is in view, where, and the milliseconds from opening the page to its first drawing.
window.autotm = { view, rows: () => rows, plot: () => plot, edges: () => [...edges()], drawnAfterMs: performance.now() };
