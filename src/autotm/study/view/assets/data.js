// What the page holds, and what follows from it alone. Tiers: 0 fast, 1 slow. Kernels and tensors go by number.
const data = JSON.parse(document.getElementById("data").textContent);
const { kernels, tensors, stays, moves } = data;
const kernelCount = kernels.name.length;
const tensorCount = tensors.name.length;
const stayCount = stays.tensor.length;
const moveCount = moves.tensor.length;
const TIERS = ["fast", "slow"];
const [FAST, SLOW] = [0, 1];

const listsOf = (tensorOf) => {
  const lists = Array.from({ length: tensorCount }, () => []);
  tensorOf.forEach((tensor, number) => lists[tensor].push(number));
  return lists;
};
const staysOf = listsOf(stays.tensor);
const movesOf = listsOf(moves.tensor);

const KINDS = [
  ["stays", "stays in one memory"],
  ["moves", "moves"],
  ["workspace", "workspace"],
  ["argument", "parameter, input or result"],
];
const kindOf = (tensor) => {
  if (movesOf[tensor].length) return "moves";
  const role = tensors.role[tensor];
  return role === "workspace" ? "workspace" : role === "intermediate" ? "stays" : "argument";
};

const sizeOf = (stay) => tensors.allocated_bytes[stays.tensor[stay]];
const isBlocking = (move) => moves.since[move] === null;
const startOf = (move) => moves.since[move] ?? moves.before[move];
// The move that a stay begins with, if it does not begin with the kernel that makes the tensor.
const arrivalOf = (stay) =>
  movesOf[stays.tensor[stay]].find((move) => moves.to[move] === stays.tier[stay] && startOf(move) === stays.start[stay]);

const liveBytes = [FAST, SLOW].map((tier) => {
  const change = new Float64Array(kernelCount + 1);
  for (let stay = 0; stay < stayCount; stay++) {
    if (stays.tier[stay] !== tier) continue;
    change[stays.start[stay]] += sizeOf(stay);
    change[stays.end[stay]] -= sizeOf(stay);
  }
  for (let kernel = 1; kernel < kernelCount; kernel++) change[kernel] += change[kernel - 1];
  return change.subarray(0, kernelCount);
});

const largest = (numbers) => numbers.reduce((most, number) => Math.max(most, number), 0);
const hasTier = [FAST, SLOW].map((tier) => stays.tier.includes(tier));
const poolTop = [Math.max(data.pool_bytes[FAST], data.limit_bytes ?? 0, 1), Math.max(data.pool_bytes[SLOW], 1)];

// Drawn together: the stays of one tier and kind.
const groups = [FAST, SLOW].map((tier) =>
  KINDS.map(([kind]) => {
    const members = [];
    for (let stay = 0; stay < stayCount; stay++) {
      if (stays.tier[stay] === tier && kindOf(stays.tensor[stay]) === kind) members.push(stay);
    }
    return { kind, members };
  }),
);
