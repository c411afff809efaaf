// The facts beside the stage: the tensor and the kernel under the cursor, or kept.
const element = (name, attributes = {}, ...children) => {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
};
const listOf = (pairs) =>
  element("dl", {}, ...pairs.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, ...[value].flat())]));
const tableOf = (caption, heads, lines) =>
  element(
    "table",
    {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...lines.map((line) => element("tr", {}, ...line.map((cell) => element("td", {}, ...[cell].flat()))))),
  );

const kernelText = (kernel) => `${kernel} ${kernels.name[kernel]}`;
const tensorButton = (tensor) =>
  element("button", { type: "button", onclick: () => keep(tensor) }, tensors.name[tensor]);
const kernelButton = (kernel) =>
  element("button", { type: "button", onclick: () => goTo(kernel) }, kernelText(kernel));

const LISTED = 12;
const kernelList = (numbers) => {
  if (!numbers.length) return "none";
  const rest = numbers.length - LISTED;
  const buttons = numbers.slice(0, LISTED).flatMap((kernel, place) => [...(place ? [element("br")] : []), kernelButton(kernel)]);
  return rest > 0 ? [...buttons, element("br"), `and ${countText(rest, "more", "more")}`] : buttons;
};

const stayLine = (stay) => [
  TIERS[stays.tier[stay]],
  `[${stays.start[stay]}, ${stays.end[stay]})`,
  `${stays.offset[stay].toLocaleString("en")}`,
];
const moveLine = (move) => [
  `to ${TIERS[moves.to[move]]}`,
  isBlocking(move) ? `before ${moves.before[move]}` : `[${moves.since[move]}, ${moves.before[move]})`,
  isBlocking(move) ? "blocking" : "asynchronous",
  timeText(moves.us[move]),
];

const tensorFacts = (tensor) => {
  const [size, taken] = [tensors.size_bytes[tensor], tensors.allocated_bytes[tensor]];
  const padded = taken === size ? "" : `, ${taken.toLocaleString("en")} with padding`;
  const producer = tensors.producer[tensor];
  const parts = [
    element("h2", {}, tensors.name[tensor]),
    listOf([
      ["role", tensors.role[tensor]],
      ["values", `${tensors.dtype[tensor]} ${tensors.shape[tensor].join(" × ") || "scalar"}`],
      ["bytes", `${bytesText(size)} (${size.toLocaleString("en")}${padded})`],
      ["producer", producer === null ? "none" : kernelButton(producer)],
      ["readers", kernelList(tensors.readers[tensor])],
    ]),
  ];
  const own = staysOf[tensor];
  if (own.length) parts.push(tableOf(countText(own.length, "stay"), ["memory", "kernels", "offset (bytes)"], own.map(stayLine)));
  else parts.push(element("p", { className: "none" }, "In fast memory, beside the limit."));
  const ways = movesOf[tensor];
  if (ways.length) parts.push(tableOf(countText(ways.length, "move"), ["", "kernels", "kind", "predicted"], ways.map(moveLine)));
  return parts;
};

const operandLines = (kernel) => {
  const parts = [["input", kernels.inputs], ["output", kernels.outputs], ["workspace", kernels.workspaces]];
  const all = parts.flatMap(([slot, lists]) => lists[kernel].map((tensor) => [slot, tensor]));
  const letters = kernels.configuration[kernel] ?? "";
  return all.map(([slot, tensor], place) => [
    slot,
    letters[place] === "P" ? "slow" : "fast",
    tensorButton(tensor),
    bytesText(tensors.size_bytes[tensor]),
  ]);
};

const kernelFacts = (kernel) => {
  const pairs = [
    ["computes", `${kernels.op[kernel]} (${kernels.implementation[kernel]})`],
    ["predicted", timeText(kernels.predicted_us[kernel])],
  ];
  if (kernels.measured_us) pairs.push(["measured", timeText(kernels.measured_us[kernel])]);
  if (kernels.blocking_us[kernel]) pairs.push(["moves before", `${timeText(kernels.blocking_us[kernel])}, predicted`]);
  if (kernels.beside_us[kernel]) pairs.push(["moves beside", `${timeText(kernels.beside_us[kernel])} more, predicted`]);
  if (hasTier[FAST]) {
    const live = liveBytes[FAST][kernel];
    const share = data.limit_bytes ? `, ${digits((100 * live) / data.limit_bytes, 3)} % of the limit` : "";
    pairs.push(["live, fast", `${bytesText(live)}${share}`]);
  }
  if (hasTier[SLOW]) pairs.push(["live, slow", bytesText(liveBytes[SLOW][kernel])]);
  if (kernels.price_us_per_mb) pairs.push(["price of 1 MB", timeText(kernels.price_us_per_mb[kernel])]);
  kernels.engine_prices?.forEach((prices, tier) => {
    if (prices[kernel]) pairs.push([`engine to ${TIERS[tier]}`, `${timeText(1e3 * prices[kernel])} for each µs of copying`]);
  });
  return [
    element("h2", {}, `Kernel ${kernelText(kernel)}`),
    listOf(pairs),
    tableOf("operands", ["slot", "memory", "tensor", "bytes"], operandLines(kernel)),
  ];
};

const fill = (id, parts) => document.getElementById(id).replaceChildren(...parts);
const nothing = (text) => [element("p", { className: "none" }, text)];
const described = { tensor: null, kernel: null };
const showFacts = () => {
  const tensor = shown.stay === undefined ? shown.kept : stays.tensor[shown.stay];
  if (tensor !== described.tensor) {
    fill("tensor", tensor === undefined ? nothing("Point at a tensor, or search for one.") : tensorFacts(tensor));
    described.tensor = tensor;
  }
  if (shown.kernel !== described.kernel) {
    fill("kernel", shown.kernel === undefined ? nothing("Point at a kernel.") : kernelFacts(shown.kernel));
    described.kernel = shown.kernel;
  }
};

const dlOf = (id, lines) =>
  fill(
    id,
    lines.map(({ label, value, note }) =>
      element(
        "div",
        {},
        element("dt", {}, label),
        element("dd", {}, value),
        ...(note ? [element("dd", { className: "note" }, note)] : []),
      ),
    ),
  );
const showWords = () => {
  const { network, optimizer, limit, step } = data.heading;
  document.getElementById("heading").textContent = `${network}, ${optimizer}, limit ${limit}`;
  document.getElementById("step").textContent =
    `${step}: ${countText(kernelCount, "kernel")}, ${countText(tensorCount, "tensor")}, ${countText(stayCount, "stay")}`;
  dlOf("summary", data.summary);
  fill("provenance", data.provenance.flatMap(({ label, value }) => [element("dt", {}, label), element("dd", {}, value)]));
  const used = new Set(groups.flat().filter(({ members }) => members.length).map(({ kind }) => kind));
  const swatch = (background, text, className = "") => {
    const mark = element("i", { className });
    if (background) mark.style.background = background;
    return element("li", {}, mark, text);
  };
  const lines = KINDS.filter(([kind]) => used.has(kind)).map(([kind, text]) => swatch(`var(--${kind})`, text));
  if (moves.since.includes(null)) lines.push(swatch("var(--blocking)", "after a blocking move", "mark"));
  if (moves.since.some((since) => since !== null)) lines.push(swatch("var(--asynchronous)", "after an asynchronous move; hatched: under way", "mark"));
  if (data.limit_bytes !== null) lines.push(swatch("", "limit", "dashed"));
  fill("legend", lines);
};
