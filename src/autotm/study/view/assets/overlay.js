// Over the map: what was kept or found, the rest behind a veil; and, drawn anew as it moves, what the cursor points at.
const shown = { kernel: undefined, stay: undefined, kept: undefined, found: [] };

const strokeStay = (context, stay, style) => {
  const row = rows[TIERS[stays.tier[stay]]];
  within(context, row, () => {
    const [left, top, wide, high] = rectangleOf(stay);
    context.strokeStyle = style;
    context.lineWidth = 2;
    context.strokeRect(left, top, Math.max(wide, 1), Math.max(high, 1));
  });
};

// Veil the pools but for some tensors.
const drawOnly = (some) => {
  for (const tier of [FAST, SLOW]) {
    const row = rows[TIERS[tier]];
    if (!row) continue;
    within(chosen, row, () => {
      chosen.fillStyle = color.veil;
      chosen.beginPath();
      chosen.rect(plot.left, row.top, plot.width, row.height);
      chosen.fill();
      const pattern = hatch(chosen);
      for (const tensor of some) {
        for (const stay of staysOf[tensor]) {
          const rectangle = rectangleOf(stay);
          if (stays.tier[stay] !== tier || !isInView(rectangle, row)) continue;
          chosen.fillStyle = color[kindOf(tensor)];
          fillStay(chosen, rectangle);
          drawArrival(chosen, stay, rectangle, pattern);
          chosen.fillStyle = color.label;
          chosen.font = SMALL;
          chosen.textBaseline = "middle";
          drawLabel(chosen, stay, rectangle);
        }
      }
    });
  }
};

// An arrow from pool to pool for each move of a tensor.
const drawRoutes = (tensor) => {
  for (const move of movesOf[tensor]) {
    const target = staysOf[tensor].find((stay) => arrivalOf(stay) === move);
    const source = staysOf[tensor].find(
      (stay) => stays.tier[stay] !== moves.to[move] && stays.start[stay] < moves.before[move] && startOf(move) <= stays.end[stay],
    );
    if (target === undefined || source === undefined) continue;
    const middle = (stay) => toY(stays.tier[stay], stays.offset[stay] + sizeOf(stay) / 2);
    const [begin, end] = [toX(edges()[startOf(move)]), toX(edges()[moves.before[move]])];
    if (end < plot.left || begin > plot.left + plot.width) continue;
    const [from, to] = [middle(source), middle(target)];
    const down = to > from ? 1 : -1;
    chosen.strokeStyle = chosen.fillStyle = isBlocking(move) ? color.blocking : color.asynchronous;
    chosen.lineWidth = 1.5;
    chosen.beginPath();
    chosen.moveTo(begin, from);
    chosen.bezierCurveTo(begin, from + down * 30, end, to - down * 30, end, to - down * 6);
    chosen.stroke();
    chosen.beginPath();
    chosen.moveTo(end, to);
    chosen.lineTo(end - 4, to - down * 8);
    chosen.lineTo(end + 4, to - down * 8);
    chosen.fill();
  }
};

const drawChosen = () => {
  cleared(chosen);
  const some = shown.kept === undefined ? shown.found : [shown.kept];
  if (some.length) drawOnly(some);
  if (shown.kept === undefined) return;
  for (const stay of staysOf[shown.kept]) strokeStay(chosen, stay, color.accent);
  chosen.save();
  chosen.beginPath();
  chosen.rect(plot.left, 0, plot.width, stage.clientHeight);
  chosen.clip();
  drawRoutes(shown.kept);
  chosen.restore();
};

const drawKernel = (kernel) => {
  const [left, right] = [toX(edges()[kernel]), toX(edges()[kernel + 1])].map((x) =>
    Math.min(Math.max(x, plot.left), plot.left + plot.width),
  );
  overlay.fillStyle = color.cursor;
  overlay.strokeStyle = color.quiet;
  overlay.lineWidth = 1;
  for (const row of Object.values(rows)) {
    overlay.beginPath();
    overlay.rect(left, row.top, Math.max(right - left, 1), row.height);
    overlay.fill();
    overlay.beginPath();
    overlay.moveTo(Math.round(left) + 0.5, row.top);
    overlay.lineTo(Math.round(left) + 0.5, row.top + row.height);
    overlay.stroke();
  }
};

const drawOverlay = () => {
  cleared(overlay);
  if (shown.kernel !== undefined) drawKernel(shown.kernel);
  if (shown.stay !== undefined) strokeStay(overlay, shown.stay, color.ink);
};
