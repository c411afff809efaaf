// Which stay is at a kernel and an address: a grid over each pool, whose cells list the stays that reach into them.
const GRID = 128;

const gridOf = (tier) => {
  const column = (kernel) => Math.min(GRID - 1, Math.floor((kernel * GRID) / kernelCount));
  const row = (address) => Math.min(GRID - 1, Math.floor((address * GRID) / poolTop[tier]));
  const eachCell = (stay, visit) => {
    const [left, right] = [column(stays.start[stay]), column(stays.end[stay] - 1)];
    const [low, high] = [row(stays.offset[stay]), row(stays.offset[stay] + sizeOf(stay) - 1)];
    for (let x = left; x <= right; x++) for (let y = low; y <= high; y++) visit(x * GRID + y);
  };
  const members = groups[tier].flatMap((group) => group.members);
  const ends = new Uint32Array(GRID * GRID + 1);
  for (const stay of members) eachCell(stay, (cell) => ends[cell + 1]++);
  for (let cell = 0; cell < GRID * GRID; cell++) ends[cell + 1] += ends[cell];
  const listed = new Uint32Array(ends[GRID * GRID]);
  const next = ends.slice();
  for (const stay of members) eachCell(stay, (cell) => (listed[next[cell]++] = stay));
  return (kernel, address) => {
    const cell = column(kernel) * GRID + row(address);
    for (let place = ends[cell]; place < ends[cell + 1]; place++) {
      const stay = listed[place];
      const isDuring = stays.start[stay] <= kernel && kernel < stays.end[stay];
      const low = stays.offset[stay];
      if (isDuring && low <= address && address < low + sizeOf(stay)) return stay;
    }
    return undefined;
  };
};
const stayAt = [FAST, SLOW].map((tier) => (hasTier[tier] ? gridOf(tier) : () => undefined));
