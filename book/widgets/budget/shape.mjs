// The least time of a shape on a GPU, and what a window, a soft cap and sinks change.
import { choice, element, table } from "../elements.mjs";
import { Entry, numbers_of } from "../form/entry.mjs";
import { FIELDS, figures } from "../form/fields.mjs";
import { least_time, work_of } from "./roofline.mjs";
import { variant_rows } from "./variant.mjs";

const MOST_ROWS = 64; // of a tile that a single group fills
const SHAPED = ["decode", "prefill"]; // operations whose least time is shown
const WORDS = /** @type {Record<string, string>} */ ({ math: "products", exp: "exponentials" });

/** @param {string} name  of a resource */
const named = (name) => WORDS[name] ?? name;

/**
 * The sentences and the rows of a shape's least time.
 * @param {import("./roofline.mjs").Shape} shape @param {import("./budget.mjs").Variant} entry
 * @param {import("./budget.mjs").Facts} gpu
 */
export function least_of(shape, { operation, rows, tensor_cores }, gpu) {
  const work = work_of(shape),
    mma_rows = operation === "decode" ? Math.min(rows, MOST_ROWS) : null,
    least = least_time(work, gpu, { tensor_cores, mma_rows }),
    peak = tensor_cores ? gpu.tensor_fp16_flops : gpu.fp32_flops;
  const words =
    `The ${gpu.name} needs at least ${figures(least.time * 1e6)} microseconds: the limit is ` +
    `${named(least.bound)}. The shape has ${figures(work.flops / work.bytes, 3)} FLOP per byte; ` +
    `the GPU can do ${figures(peak / gpu.dram_bytes_per_s, 3)} while it moves one.`;
  const each = Object.entries(least.times).map(([name, time]) => [
    name === least.bound ? `${named(name)} (the limit)` : named(name),
    figures(time * 1e6),
  ]);
  return { words, each };
}

/** A choice between no and yes. @param {string} label @param {string} yes */
const switch_of = (label, yes) =>
  choice(label, [
    { value: "", text: "none" },
    { value: "on", text: yes },
  ]);

/** The fields of a shape and of a variant, and what `show` says of them. */
export function shape_form() {
  const entries = {
    requests: new Entry(FIELDS.requests, 64),
    tokens: new Entry(FIELDS.tokens, 2048),
    keys: new Entry(FIELDS.keys, 8192),
    q_heads: new Entry(FIELDS.q_heads, 32),
    kv_heads: new Entry(FIELDS.kv_heads, 8),
    window: new Entry(FIELDS.window, 1023),
  };
  const switches = {
    window: switch_of("Window", "some keys before a token"),
    soft_cap: switch_of("Soft cap", "on"),
    sinks: switch_of("Sinks", "one of each query head"),
  };
  const said = element("p", { role: "status", class: "lab-status" }),
    times = element("div", {});
  const { window, ...numbers } = entries,
    lengths = Object.values(numbers).map(({ field }) => field),
    of_variant = element(
      "div",
      { class: "lab-form", role: "group", "aria-label": "a variant of attention" },
      ...[switches.window, window, switches.soft_cap, switches.sinks].map(({ field }) => field),
    );
  const form = element(
    "div",
    { class: "lab-form", role: "group", "aria-label": "a shape" },
    ...lengths,
  );
  const title = element("p", { class: "lab-title" }, "The least time of a shape");
  const root = element("div", {}, title, form, of_variant, said, times);
  /**
   * @param {import("./budget.mjs").Variant} entry @param {import("./budget.mjs").Facts} gpu
   * @param {boolean} runs  whether the GPU can run the kernel
   * @param {import("./tile.mjs").Tiled | null} block  null if there is no such tile
   * @param {import("./variant.mjs").Known} known
   */
  const show = (entry, gpu, runs, block, known) => {
    root.hidden = !runs || !SHAPED.includes(entry.operation);
    said.textContent = "";
    times.replaceChildren();
    const decode = entry.operation === "decode", // which has one token of each request
      varied = known.varied.includes(entry.kernel),
      on = (/** @type {keyof typeof switches} */ name) =>
        varied && switches[name].select.value !== "";
    of_variant.hidden = !varied;
    window.field.hidden = !on("window");
    numbers.tokens.field.hidden = decode;
    const { tokens, ...others } = numbers,
      given = numbers_of(others),
      n_tokens = decode ? 1 : tokens.number(),
      n_before = on("window") ? window.number() : Infinity;
    if (root.hidden || !given || n_tokens === null || n_before === null) return;
    if (given.q_heads % given.kv_heads !== 0)
      return entries.q_heads.refuse(
        `${given.q_heads} query heads are no multiple of the ${given.kv_heads} KV heads.`,
      );
    const shape = {
      ...given,
      tokens: n_tokens,
      head_dim: entry.head_dim,
      window: on("window") ? n_before : null,
      soft_cap: on("soft_cap"),
      sinks: on("sinks"),
    };
    const { words, each } = least_of(shape, entry, gpu);
    said.textContent = words;
    times.append(table("Each alone at its peak", ["resource", "microseconds"], each));
    if (!block || !(on("window") || on("soft_cap") || on("sinks"))) return;
    const rows = variant_rows(shape, entry, gpu, block, known),
      caption = "What the variant changes";
    times.append(element("p", { class: "lab-title" }, caption));
    times.append(table(caption, ["of a call", "without", "with"], rows));
  };
  return { root, show };
}
