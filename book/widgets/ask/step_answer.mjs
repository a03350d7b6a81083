// Steps through a kernel of a primer that has the reader's own lines in it.
import { element } from "../elements.mjs";
import { Stepper } from "../step/stepper.mjs";

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
  const nothing = { barriers: [], rows: [] },
    run = { recorded: { ...plan, attention: { dtype: "fp32" } } };
  const stepped = { kernel, cases: run, maps: [{ syncs: 0, tiles }], sources, ...nothing };
  const below = element("div", {});
  root.append(below);
  new Stepper(below, /** @type {any} */ (stepped), events, error);
}
