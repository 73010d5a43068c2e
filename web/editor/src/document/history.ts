/** Records the steps of a document, each with the label of its command. */
import type { Doc } from "./model";
import type { Path } from "./scope";

export interface Step {
  readonly doc: Doc;
  readonly label: string;
  /** Equal for all steps of one gesture; "" for a single step. */
  readonly gesture: string;
  /** The path of the changed graph. */
  readonly path: Path;
}

export interface History {
  readonly past: readonly Step[];
  readonly present: Step;
  readonly future: readonly Step[];
}

export function begin(doc: Doc): History {
  return { past: [], present: { doc, label: "open", gesture: "", path: [] }, future: [] };
}

/** Adds a step. A step of the same gesture replaces the last one. */
export function record(
  history: History,
  doc: Doc,
  label: string,
  gesture = "",
  path: Path = [],
): History {
  if (doc === history.present.doc) return history;
  const present = { doc, label, gesture, path };
  const continues = gesture !== "" && history.present.gesture === gesture;
  const past = continues ? history.past : [...history.past, history.present];
  return { past, present, future: [] };
}

export function undo(history: History): History {
  const last = history.past.at(-1);
  if (last === undefined) return history;
  return {
    past: history.past.slice(0, -1),
    present: { ...last, gesture: "" },
    future: [history.present, ...history.future],
  };
}

export function redo(history: History): History {
  const [next, ...future] = history.future;
  if (next === undefined) return history;
  return { past: [...history.past, history.present], present: { ...next, gesture: "" }, future };
}

/** A step as listed in the history panel. */
export interface ListedStep {
  readonly label: string;
  readonly path: Path;
  /** The number of steps from the present one; negative for earlier steps. */
  readonly by: number;
}

const MAX_LISTED_STEPS = 200;

/** Returns the steps around the present one, and the number of steps beyond them. */
export function stepsAround({ past, present, future }: History, most = MAX_LISTED_STEPS) {
  const [before, after] = [past.slice(-most), future.slice(0, most)];
  const steps = [...before, present, ...after].map(({ label, path }, at): ListedStep => ({
    label,
    path,
    by: at - before.length,
  }));
  return {
    steps,
    earlier: past.length - before.length,
    later: future.length - after.length,
  };
}
