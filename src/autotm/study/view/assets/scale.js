// Where kernels and addresses are on the stage, in CSS pixels; zooming and moving change `view`, and nothing else does.
const edgesOf = { kernels: new Float64Array(kernelCount + 1), time: new Float64Array(kernelCount + 1) };
for (let kernel = 0; kernel < kernelCount; kernel++) {
  edgesOf.kernels[kernel + 1] = kernel + 1;
  const took = kernels.blocking_us[kernel] + kernels.predicted_us[kernel] + kernels.beside_us[kernel];
  edgesOf.time[kernel + 1] = edgesOf.time[kernel] + Math.max(took, 0);
}
const view = { axis: "kernels", from: 0, to: kernelCount, low: [0, 0], high: [...poolTop] };
const edges = () => edgesOf[view.axis];
const lastEdge = () => edges()[kernelCount];

const stage = document.getElementById("stage");
const MARGIN = { left: 84, right: 16, top: 4, bottom: 34 };
const CAPTION = 20;
const GAP = 8;
const STRIPS = { live: 60, moves: 32, prices: 46 };
const FAST_SHARE = [0.54, 0.7];

const hasPrices = kernels.price_us_per_mb?.some((price) => price > 0) ?? false;
const rowNames = [
  ...(hasTier[FAST] ? ["live"] : []),
  ...[FAST, SLOW].filter((tier) => hasTier[tier]).map((tier) => TIERS[tier]),
  ...(moveCount ? ["moves"] : []),
  ...(hasPrices ? ["prices"] : []),
];
let rows = {};
let plot = { left: 0, width: 1 };

// Lay the rows out, one below the other: strips as high as they are, the pools in what is left.
const layOut = () => {
  plot = { left: MARGIN.left, width: Math.max(stage.clientWidth - MARGIN.left - MARGIN.right, 1) };
  const fixed = rowNames.reduce((sum, name) => sum + CAPTION + GAP + (STRIPS[name] ?? 0), 0);
  const left = Math.max(stage.clientHeight - MARGIN.top - MARGIN.bottom - fixed, 120);
  const share = Math.min(Math.max(poolTop[FAST] / (poolTop[FAST] + poolTop[SLOW]), FAST_SHARE[0]), FAST_SHARE[1]);
  const shares = hasTier[FAST] && hasTier[SLOW] ? [share, 1 - share] : [1, 1];
  rows = {};
  let top = MARGIN.top;
  for (const name of rowNames) {
    const height = STRIPS[name] ?? left * shares[TIERS.indexOf(name)];
    rows[name] = { top: top + CAPTION, height };
    top += CAPTION + height + GAP;
  }
};

const toX = (value) => plot.left + ((value - view.from) / (view.to - view.from)) * plot.width;
const fromX = (x) => view.from + ((x - plot.left) / plot.width) * (view.to - view.from);
const toY = (tier, address) => {
  const { top, height } = rows[TIERS[tier]];
  return top + height - ((address - view.low[tier]) / (view.high[tier] - view.low[tier])) * height;
};
const fromY = (tier, y) => {
  const { top, height } = rows[TIERS[tier]];
  return view.low[tier] + ((top + height - y) / height) * (view.high[tier] - view.low[tier]);
};
const tierAt = (y) =>
  [FAST, SLOW].find((tier) => {
    const row = rows[TIERS[tier]];
    return row && row.top <= y && y < row.top + row.height;
  });

// The kernel in whose slot a place on the time axis lies.
const kernelAt = (value) => {
  let [low, high] = [0, kernelCount];
  while (low + 1 < high) {
    const middle = (low + high) >> 1;
    if (edges()[middle] <= value) low = middle;
    else high = middle;
  }
  return low;
};
const rectangleOf = (stay) => {
  const [tier, low] = [stays.tier[stay], stays.offset[stay]];
  const [left, top] = [toX(edges()[stays.start[stay]]), toY(tier, low + sizeOf(stay))];
  return [left, top, toX(edges()[stays.end[stay]]) - left, toY(tier, low) - top];
};

const CLOSEST_KERNELS = 2;
const CLOSEST_BYTES = 256;
const clamped = (from, to, end, closest) => {
  const width = Math.min(Math.max(to - from, Math.min(closest, end)), end);
  const start = Math.min(Math.max((from + to - width) / 2, 0), end - width);
  return [start, start + width];
};
const showTimes = (from, to) => {
  [view.from, view.to] = clamped(from, to, lastEdge(), (CLOSEST_KERNELS * lastEdge()) / kernelCount);
};
const showAddresses = (tier, low, high) => {
  [view.low[tier], view.high[tier]] = clamped(low, high, poolTop[tier], CLOSEST_BYTES);
};
const zoomTimes = (around, factor) =>
  showTimes(around - (around - view.from) * factor, around + (view.to - around) * factor);
const zoomAddresses = (tier, around, factor) =>
  showAddresses(tier, around - (around - view.low[tier]) * factor, around + (view.high[tier] - around) * factor);
const showWhole = () => {
  showTimes(0, lastEdge());
  for (const tier of [FAST, SLOW]) showAddresses(tier, 0, poolTop[tier]);
};
// Change what the time axis counts, and keep the kernels that are in view.
const countBy = (axis) => {
  const [first, last] = [kernelAt(view.from), kernelAt(view.to)];
  const isWhole = view.from <= 0 && view.to >= lastEdge();
  view.axis = axis;
  if (isWhole) showTimes(0, lastEdge());
  else showTimes(edges()[first], edges()[Math.min(last + 1, kernelCount)]);
};
// Show one tensor: its whole life with some room, and in each pool the addresses that it has there.
const showTensor = (tensor) => {
  const own = staysOf[tensor];
  if (!own.length) return;
  const from = edges()[Math.min(...own.map((stay) => stays.start[stay]))];
  const to = edges()[Math.max(...own.map((stay) => stays.end[stay]))];
  showTimes(from - 0.6 * (to - from), to + 0.6 * (to - from));
  for (const tier of [FAST, SLOW]) {
    const here = own.filter((stay) => stays.tier[stay] === tier);
    if (!here.length) continue;
    const low = Math.min(...here.map((stay) => stays.offset[stay]));
    const high = Math.max(...here.map((stay) => stays.offset[stay] + sizeOf(stay)));
    showAddresses(tier, low - 2 * (high - low), high + 2 * (high - low));
  }
};
