// What changes with the cursor: the kernel's slot, outlines, and what was kept or found over a veil.
const shown = { kernel: undefined, stay: undefined, kept: undefined, found: [] };

const strokeStay = (stay, style, width) => {
  const row = rows[TIERS[stays.tier[stay]]];
  within(overlay, row, () => {
    const [left, top, wide, high] = rectangleOf(stay);
    overlay.strokeStyle = style;
    overlay.lineWidth = width;
    overlay.strokeRect(left, top, Math.max(wide, 1), Math.max(high, 1));
  });
};

// Veil the pools but for some tensors.
const drawOnly = (chosen) => {
  for (const tier of [FAST, SLOW]) {
    const row = rows[TIERS[tier]];
    if (!row) continue;
    within(overlay, row, () => {
      overlay.fillStyle = color.veil;
      overlay.beginPath();
      overlay.rect(plot.left, row.top, plot.width, row.height);
      overlay.fill();
      const pattern = hatch(overlay);
      for (const tensor of chosen) {
        for (const stay of staysOf[tensor]) {
          const rectangle = rectangleOf(stay);
          if (stays.tier[stay] !== tier || !isInView(rectangle, row)) continue;
          overlay.fillStyle = color[kindOf(tensor)];
          fillStay(overlay, rectangle);
          drawArrival(overlay, stay, rectangle, pattern);
          overlay.fillStyle = color.label;
          overlay.font = SMALL;
          overlay.textBaseline = "middle";
          drawLabel(overlay, stay, rectangle);
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
    overlay.strokeStyle = overlay.fillStyle = isBlocking(move) ? color.blocking : color.asynchronous;
    overlay.lineWidth = 1.5;
    overlay.beginPath();
    overlay.moveTo(begin, from);
    overlay.bezierCurveTo(begin, from + down * 30, end, to - down * 30, end, to - down * 6);
    overlay.stroke();
    overlay.beginPath();
    overlay.moveTo(end, to);
    overlay.lineTo(end - 4, to - down * 8);
    overlay.lineTo(end + 4, to - down * 8);
    overlay.fill();
  }
};

const drawSlot = (kernel) => {
  const [left, right] = [toX(edges()[kernel]), toX(edges()[kernel + 1])].map((x) =>
    Math.min(Math.max(x, plot.left), plot.left + plot.width),
  );
  overlay.fillStyle = color.slot;
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
  const chosen = shown.kept !== undefined ? [shown.kept] : shown.found;
  if (chosen.length) drawOnly(chosen);
  if (shown.kernel !== undefined) drawSlot(shown.kernel);
  if (shown.kept !== undefined) {
    for (const stay of staysOf[shown.kept]) strokeStay(stay, color.accent, 2);
    overlay.save();
    overlay.beginPath();
    overlay.rect(plot.left, 0, plot.width, stage.clientHeight);
    overlay.clip();
    drawRoutes(shown.kept);
    overlay.restore();
  }
  if (shown.stay !== undefined) strokeStay(shown.stay, color.ink, 2);
};
