// What goes with the pools: live bytes, moves, prices, and the axes of all rows.
const CAPTIONS = {
  live: data.limit_bytes === null ? "live bytes in the fast pool" : "live bytes in the fast pool, and the limit",
  fast: "fast pool: address",
  slow: "slow pool: address",
  moves: "moves",
  prices: "price of fast memory: what 1 MB more is worth during a kernel",
};

// A line of steps over kernels, one value each, closed down to the bottom of the row; at most a step a pixel.
const traceSteps = (row, values, most) => {
  const first = kernelAt(view.from);
  const last = Math.min(kernelAt(view.to) + 1, kernelCount);
  const y = (value) => row.top + row.height - (value / most) * row.height;
  base.beginPath();
  base.moveTo(toX(edges()[first]), row.top + row.height);
  let kernel = first;
  while (kernel < last) {
    const left = toX(edges()[kernel]);
    let [value, end] = [values[kernel], kernel + 1];
    while (end < last && toX(edges()[end]) < left + 0.5) value = Math.max(value, values[end++]);
    base.lineTo(left, y(value));
    base.lineTo(toX(edges()[end]), y(value));
    kernel = end;
  }
  base.lineTo(toX(edges()[last]), row.top + row.height);
};

const mostLive = Math.max(data.limit_bytes ?? 0, largest(liveBytes[FAST]), 1);
const drawLive = () => {
  const row = rows.live;
  within(base, row, () => {
    traceSteps(row, liveBytes[FAST], mostLive * 1.08);
    base.fillStyle = color.stays;
    base.fill();
    if (data.limit_bytes !== null) drawLimit(row, row.top + row.height * (1 - data.limit_bytes / (mostLive * 1.08)));
  });
};

const mostPrice = hasPrices ? largest(kernels.price_us_per_mb) : 0;
const drawPrices = () => {
  within(base, rows.prices, () => {
    traceSteps(rows.prices, kernels.price_us_per_mb, mostPrice * 1.08);
    base.fillStyle = color.quiet;
    base.fill();
  });
};

// A lane for each direction: a bar beside its kernels for an asynchronous move, a mark for a blocking one.
const LANE = 14;
const drawMoves = () => {
  const row = rows.moves;
  within(base, row, () => {
    for (let move = 0; move < moveCount; move++) {
      const top = row.top + (moves.to[move] === SLOW ? LANE + 4 : 0);
      const [left, right] = [toX(edges()[startOf(move)]), toX(edges()[moves.before[move]])];
      if (right < plot.left || left > plot.left + plot.width) continue;
      base.beginPath();
      if (isBlocking(move)) base.rect(left - 1, top, 2, LANE);
      else base.rect(left, top + 3, Math.max(right - left, 1), LANE - 6);
      base.fillStyle = isBlocking(move) ? color.blocking : color.asynchronous;
      base.fill();
    }
  });
};

const drawTick = (x, y, text, align) => {
  base.textAlign = align;
  base.fillStyle = color.quiet;
  base.fillText(text, x, y);
};
const drawByteTicks = (row, low, high, toHeight) => {
  const [unit, size] = unitFor(high, BYTE_UNITS);
  for (const tick of ticksBetween(low / size, high / size, Math.min(Math.max(row.height / 34, 2.5), 8))) {
    const y = toHeight(tick * size);
    if (y > row.top + row.height + 1 || y < row.top - 1) continue;
    base.fillStyle = color.line;
    base.beginPath();
    base.rect(plot.left - 5, y - 0.5, 5, 1);
    base.fill();
    drawTick(plot.left - 9, y, `${digits(tick, 6)} ${unit}`, "right");
  }
};
const drawTimeAxis = () => {
  const names = Object.keys(rows);
  const bottom = rows[names[names.length - 1]].top + rows[names[names.length - 1]].height;
  const isTime = view.axis === "time";
  const [unit, size] = isTime ? unitFor(view.to, TIME_UNITS) : ["", 1];
  for (const tick of ticksBetween(view.from / size, view.to / size, plot.width / 90)) {
    if (!isTime && !Number.isInteger(tick)) continue;
    const x = toX(tick * size);
    base.fillStyle = color.line;
    base.beginPath();
    base.rect(x - 0.5, bottom, 1, 5);
    base.fill();
    drawTick(x, bottom + 13, isTime ? `${digits(tick, 6)} ${unit}` : String(tick), "center");
  }
  drawTick(plot.left + plot.width, bottom + 28, isTime ? "predicted time" : "kernel", "right");
};

const drawFrames = () => {
  base.font = SMALL;
  base.textBaseline = "middle";
  for (const [name, row] of Object.entries(rows)) {
    base.fillStyle = color.line;
    base.beginPath();
    base.rect(plot.left - 1, row.top, 1, row.height);
    base.rect(plot.left - 1, row.top + row.height, plot.width + 1, 1);
    base.fill();
    base.font = FONT;
    base.textAlign = "left";
    base.fillStyle = color.ink;
    base.fillText(CAPTIONS[name], plot.left, row.top - CAPTION / 2 + 1);
    base.font = SMALL;
  }
  for (const tier of [FAST, SLOW]) {
    const row = rows[TIERS[tier]];
    if (row) drawByteTicks(row, view.low[tier], view.high[tier], (address) => toY(tier, address));
  }
  if (rows.live) {
    const { live } = rows;
    drawByteTicks(live, 0, mostLive, (bytes) => live.top + live.height * (1 - bytes / (mostLive * 1.08)));
  }
  if (rows.moves) {
    drawTick(plot.left - 9, rows.moves.top + LANE / 2, "to fast", "right");
    drawTick(plot.left - 9, rows.moves.top + LANE * 1.5 + 4, "to slow", "right");
  }
  if (rows.prices) {
    drawTick(plot.left - 9, rows.prices.top + 8, `${timeText(mostPrice)}/MB`, "right");
    drawTick(plot.left - 9, rows.prices.top + rows.prices.height - 2, "0", "right");
  }
  drawTimeAxis();
};

const drawBase = () => {
  layOut();
  cleared(base);
  if (rows.live) drawLive();
  for (const tier of [FAST, SLOW]) if (rows[TIERS[tier]]) drawPool(tier);
  if (rows.moves) drawMoves();
  if (rows.prices) drawPrices();
  drawFrames();
};
