// Numbers as people read them: 1 MB is a million bytes.
const digits = (number, count = 4) => String(Number(number.toPrecision(count)));
const inUnits = (number, units) => {
  const [name, size] = units.find(([, size]) => Math.abs(number) >= size) ?? units[units.length - 1];
  return `${digits(number / size)} ${name}`;
};
const BYTE_UNITS = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
const TIME_UNITS = [["s", 1e6], ["ms", 1e3], ["µs", 1]];
const bytesText = (bytes) => inUnits(bytes, BYTE_UNITS);
const timeText = (microseconds) => inUnits(microseconds, TIME_UNITS);
const countText = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

// Round numbers that divide [from, to] into about `count` parts.
const ticksBetween = (from, to, count) => {
  const raw = (to - from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= raw) ?? 10);
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to + step * 1e-9; tick += step) ticks.push(tick);
  return ticks;
};
const unitFor = (most, units) => units.find(([, size]) => most >= size) ?? units[units.length - 1];
