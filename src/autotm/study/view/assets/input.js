// Mouse, fingers and keys.
const say = (text) => (document.getElementById("said").textContent = text);

// Keep a tensor in view among the others, or let it go; `undefined` lets go.
const keep = (tensor) => {
  shown.kept = tensor;
  shown.stay = undefined;
  if (tensor !== undefined) {
    say(`${tensors.name[tensor]}, ${tensors.role[tensor]}, ${bytesText(tensors.size_bytes[tensor])}`);
    if (shown.kernel === undefined && staysOf[tensor].length) shown.kernel = stays.start[staysOf[tensor][0]];
  }
  redraw({ isMoved: false });
};
const goTo = (kernel) => {
  shown.kernel = Math.min(Math.max(kernel, 0), kernelCount - 1);
  shown.stay = undefined;
  const [left, right] = [edges()[shown.kernel], edges()[shown.kernel + 1]];
  const width = view.to - view.from;
  if (left < view.from || right > view.to) showTimes((left + right - width) / 2, (left + right + width) / 2);
  say(`kernel ${kernelText(shown.kernel)}`);
  redraw();
};
// The next stay above or below, of those that the kernel at the cursor finds in the pools.
const step = (direction) => {
  const kernel = shown.kernel ?? 0;
  const here = [];
  for (let stay = 0; stay < stayCount; stay++) {
    if (stays.start[stay] <= kernel && kernel < stays.end[stay]) here.push(stay);
  }
  if (!here.length) return;
  here.sort((one, other) => stays.tier[other] - stays.tier[one] || stays.offset[one] - stays.offset[other]);
  const place = here.indexOf(shown.stay);
  shown.kernel = kernel;
  shown.stay = here[place < 0 ? 0 : (place + direction + here.length) % here.length];
  const tensor = stays.tensor[shown.stay];
  say(`${tensors.name[tensor]}, ${TIERS[stays.tier[shown.stay]]}, ${bytesText(tensors.size_bytes[tensor])}`);
  redraw({ isMoved: false });
};

const placeOf = (event) => {
  const box = stage.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
const isInPlot = (x) => plot.left <= x && x <= plot.left + plot.width;
const point = (event) => {
  const [x, y] = placeOf(event);
  if (!isInPlot(x)) return;
  shown.kernel = kernelAt(fromX(x));
  const tier = tierAt(y);
  shown.stay = tier === undefined ? undefined : stayAt[tier](shown.kernel, fromY(tier, y));
  redraw({ isMoved: false });
};

const CLICK = 4;
let drag = null;
const press = (event) => {
  if (event.button !== 0) return;
  const [x, y] = placeOf(event);
  drag = { x, y, tier: tierAt(y), from: view.from, to: view.to, low: [...view.low], high: [...view.high], isMoved: false };
  stage.setPointerCapture(event.pointerId);
};
const slide = (event) => {
  if (!drag) return point(event);
  const [x, y] = placeOf(event);
  drag.isMoved ||= Math.hypot(x - drag.x, y - drag.y) > CLICK;
  if (!drag.isMoved) return undefined;
  const right = ((drag.x - x) / plot.width) * (drag.to - drag.from);
  showTimes(drag.from + right, drag.to + right);
  if (drag.tier !== undefined) {
    const [low, high] = [drag.low[drag.tier], drag.high[drag.tier]];
    const up = ((y - drag.y) / rows[TIERS[drag.tier]].height) * (high - low);
    showAddresses(drag.tier, low + up, high + up);
  }
  return redraw();
};
const release = (event) => {
  const wasClick = drag && !drag.isMoved;
  drag = null;
  if (!wasClick) return;
  point(event);
  const { stay } = shown;
  const tensor = stay === undefined ? undefined : stays.tensor[stay];
  keep(tensor === shown.kept ? undefined : tensor);
  shown.stay = stay;
};
// Its two clicks have kept the tensor and let it go, or the reverse.
const doubleClick = (event) => {
  point(event);
  if (shown.stay !== undefined) keep(stays.tensor[shown.stay]);
  zoomToTensor();
};

const ZOOM = 1.0015;
const STRONG = 1.5;
const wheel = (event) => {
  event.preventDefault();
  const [x, y] = placeOf(event);
  const turned = event.deltaY || event.deltaX;
  const factor = ZOOM ** (turned * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 30 : 1));
  const tier = tierAt(y);
  if (event.shiftKey && tier !== undefined) zoomAddresses(tier, fromY(tier, y), factor);
  else zoomTimes(fromX(Math.min(Math.max(x, plot.left), plot.left + plot.width)), factor);
  redraw();
  point(event);
};
const zoomAtKernel = (factor) => {
  const kernel = shown.kernel;
  const isShown = kernel !== undefined && edges()[kernel] >= view.from && edges()[kernel + 1] <= view.to;
  zoomTimes(isShown ? (edges()[kernel] + edges()[kernel + 1]) / 2 : (view.from + view.to) / 2, factor);
  redraw();
};
const zoomToTensor = () => {
  const tensor = shown.stay === undefined ? shown.kept : stays.tensor[shown.stay];
  if (tensor === undefined) return;
  showTensor(tensor);
  redraw();
};
const whole = () => {
  showWhole();
  redraw();
};
const changeAxis = (axis) => {
  countBy(axis);
  document.querySelector(`#axis input[value="${axis}"]`).checked = true;
  redraw();
};
const letGo = () => {
  searchField.value = "";
  search();
};

const KEYS = {
  ArrowLeft: (event) => goTo((shown.kernel ?? 1) - (event.shiftKey ? 10 : 1)),
  ArrowRight: (event) => goTo((shown.kernel ?? -1) + (event.shiftKey ? 10 : 1)),
  ArrowUp: () => step(1),
  ArrowDown: () => step(-1),
  Enter: () => keep(shown.stay === undefined ? undefined : stays.tensor[shown.stay]),
  z: zoomToTensor,
  t: () => changeAxis(view.axis === "time" ? "kernels" : "time"),
  "+": () => zoomAtKernel(1 / STRONG),
  "=": () => zoomAtKernel(1 / STRONG),
  "-": () => zoomAtKernel(STRONG),
  0: whole,
  Escape: letGo,
};
const listen = () => {
  stage.addEventListener("pointerdown", press);
  stage.addEventListener("pointermove", slide);
  stage.addEventListener("pointerup", release);
  stage.addEventListener("pointercancel", () => (drag = null));
  stage.addEventListener("pointerleave", () => {
    if (drag) return;
    shown.stay = undefined;
    redraw({ isMoved: false });
  });
  stage.addEventListener("dblclick", doubleClick);
  stage.addEventListener("wheel", wheel, { passive: false });
  stage.addEventListener("keydown", (event) => {
    const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(event);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target === searchField) return;
    event.preventDefault();
    searchField.focus();
    searchField.select();
  });
  searchField.addEventListener("input", search);
  searchField.addEventListener("keydown", (event) => {
    if (event.key === "Enter") keepNextFound();
    else if (event.key === "Escape") {
      letGo();
      stage.focus();
    }
  });
  document.getElementById("axis").addEventListener("change", (event) => changeAxis(event.target.value));
  document.getElementById("closer").addEventListener("click", () => zoomAtKernel(1 / STRONG));
  document.getElementById("farther").addEventListener("click", () => zoomAtKernel(STRONG));
  document.getElementById("whole").addEventListener("click", whole);
};
