// Steps through a kernel of a primer that has the reader's own lines in it.
import { element } from "../elements.mjs";
import { Stepper } from "../step/stepper.mjs";

const ANSWER = "your_answer.cuh";

/**
 * @typedef {{kernel: string, threads: number, smem_bytes: number,
 *   tiles: import("../step/smem_map.mjs").Tile[]}} Steps
 */

/**
 * @param {HTMLElement} root @param {import("../python/session.mjs").Session} session
 * @param {string} name @param {Steps} steps @param {string} answer
 * @param {(words: string) => void} say
 */
export async function step_answer(root, session, name, { kernel, tiles, ...plan }, answer, say) {
  const { error, events, sources } = await session.ask({ ask: "step", name, answer }, say);
  if (error) root.append(element("p", { class: "lab-error" }, error));
  if (!events?.length) return;
  for (const event of events) event.file = event.file.split("/").pop();
  const [, line, file] = error?.match(/line (\d+) of (your answer|\w+\.cuh)/) ?? [],
    last = events[events.length - 1];
  if (line && last.word === "end")
    Object.assign(last, { line: Number(line), file: file.replace("your answer", ANSWER) });
  const nothing = { barriers: [], rows: [] },
    run = { recorded: { ...plan, attention: { dtype: "fp32" } } };
  const stepped = { kernel, cases: run, maps: [{ syncs: 0, tiles }], sources, ...nothing };
  const below = element("div", {});
  root.append(below);
  new Stepper(below, /** @type {any} */ (stepped), events, error);
}
