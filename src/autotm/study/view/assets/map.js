// The pools: every stay as a rectangle, and the moves that stays begin with.
const contextOf = (id) => document.getElementById(id).getContext("2d");
const base = contextOf("base");
const overlay = contextOf("overlay");
let color = {};
const readColors = () => {
  const style = getComputedStyle(document.documentElement);
  const names = ["ground", "line", "ink", "quiet", "accent", "label", "blocking", "asynchronous", "limit", "slot", "veil"];
  color = Object.fromEntries([...names, ...KINDS.map(([kind]) => kind)].map((name) => [name, style.getPropertyValue(`--${name}`)]));
};
const FONT = '12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
const SMALL = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';

// Give a canvas as many dots as the screen has, and draw in CSS pixels.
const cleared = (context) => {
  const [width, height] = [stage.clientWidth, stage.clientHeight];
  const dots = window.devicePixelRatio || 1;
  const { canvas } = context;
  if (canvas.width !== Math.round(width * dots) || canvas.height !== Math.round(height * dots)) {
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round(height * dots);
  }
  context.setTransform(dots, 0, 0, dots, 0, 0);
  context.clearRect(0, 0, width, height);
};
const within = (context, row, draw) => {
  context.save();
  context.beginPath();
  context.rect(plot.left, row.top, plot.width, row.height);
  context.clip();
  draw();
  context.restore();
};
const isInView = ([left, top, width, height], row) =>
  left < plot.left + plot.width && left + width > plot.left && top < row.top + row.height && top + height > row.top;

const THINNEST = 0.6;
const EDGED = 4;
const fillStay = (context, rectangle) => {
  const [left, top, width, height] = rectangle;
  context.fillRect(left, top, Math.max(width, THINNEST), Math.max(height, THINNEST));
};

const hatch = (context) => {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color.asynchronous;
  pen.lineWidth = 1.6;
  for (const at of [-4, 0, 4, 8]) {
    pen.moveTo(at - 2, 10);
    pen.lineTo(at + 10, -2);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
};

// How a stay begins: a line where a blocking move ends; hatched while an asynchronous one is under way.
const drawArrival = (context, stay, [left, top, , height], pattern) => {
  const move = arrivalOf(stay);
  if (move === undefined) return;
  const tall = Math.max(height, 1);
  const there = isBlocking(move) ? left : toX(edges()[moves.before[move]]);
  context.beginPath();
  if (!isBlocking(move)) {
    context.rect(left, top, there - left, tall);
    context.fillStyle = pattern;
    context.fill();
  }
  context.beginPath();
  context.rect(there - 1, top, 2, tall);
  context.fillStyle = isBlocking(move) ? color.blocking : color.asynchronous;
  context.fill();
};

const LABELLED = { width: 56, height: 15 };
const drawLabel = (context, stay, [left, top, width, height]) => {
  const from = Math.max(left, plot.left);
  const room = Math.min(left + width, plot.left + plot.width) - from - 8;
  if (room < LABELLED.width || height < LABELLED.height) return;
  let text = tensors.name[stays.tensor[stay]];
  const fits = Math.floor(room / 6.2);
  if (text.length > fits) text = `${text.slice(0, fits - 1)}…`;
  context.fillText(text, from + 5, top + height / 2);
};

const drawPool = (tier) => {
  const row = rows[TIERS[tier]];
  within(base, row, () => {
    const large = [];
    for (const { kind, members } of groups[tier]) {
      base.fillStyle = color[kind];
      for (const stay of members) {
        const rectangle = rectangleOf(stay);
        if (!isInView(rectangle, row)) continue;
        fillStay(base, rectangle);
        if (rectangle[2] > EDGED && rectangle[3] > EDGED) large.push([stay, rectangle]);
      }
    }
    base.strokeStyle = color.ground;
    base.lineWidth = 1;
    base.beginPath();
    for (const [, [left, top, width, height]] of large) base.rect(left + 0.5, top + 0.5, width - 1, height - 1);
    base.stroke();
    const pattern = hatch(base);
    for (const { kind, members } of groups[tier]) {
      if (kind !== "moves") continue;
      for (const stay of members) {
        const rectangle = rectangleOf(stay);
        if (isInView(rectangle, row)) drawArrival(base, stay, rectangle, pattern);
      }
    }
    base.fillStyle = color.label;
    base.font = SMALL;
    base.textBaseline = "middle";
    base.textAlign = "left";
    for (const [stay, rectangle] of large) drawLabel(base, stay, rectangle);
    if (tier === FAST && data.limit_bytes !== null) drawLimit(row, toY(FAST, data.limit_bytes));
  });
};
const drawLimit = (row, y) => {
  if (y < row.top - 1) return;
  base.strokeStyle = color.limit;
  base.lineWidth = 1.5;
  base.setLineDash([6, 4]);
  base.beginPath();
  base.moveTo(plot.left, Math.max(y, row.top + 1));
  base.lineTo(plot.left + plot.width, Math.max(y, row.top + 1));
  base.stroke();
  base.setLineDash([]);
};
