// Draw once a frame at most: everything where the view moved, else only what goes with the cursor.
let isDue = false;
let isBaseDue = false;
const redraw = ({ isMoved = true } = {}) => {
  isBaseDue ||= isMoved;
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    if (isBaseDue) drawBase();
    isBaseDue = false;
    drawOverlay();
    showFacts();
  });
};

readColors();
showWords();
showFacts();
listen();
drawBase();
drawOverlay();
new ResizeObserver(() => redraw()).observe(stage);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColors();
  redraw();
});
// For tests and consoles: what is in view, where, and the milliseconds from opening the page to its first drawing.
window.autotm = { view, rows: () => rows, plot: () => plot, edges: () => [...edges()], drawnAfterMs: performance.now() };
