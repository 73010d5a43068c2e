/** Steps of a document, each with the name of what led to it. */
import type { Doc } from "./model";
import type { Path } from "./scope";

export interface Step {
  readonly doc: Doc;
  readonly label: string;
  /** Steps of one gesture have the same; "" for those that stand alone. */
  readonly gesture: string;
  /** The graph in which it was done. */
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

/** Adds a step; one of the same gesture as the last takes its place. */
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

/** A step as a list shows it. */
export interface ListedStep {
  readonly label: string;
  readonly path: Path;
  /** How many steps it is from the present one: negative before it. */
  readonly by: number;
}

const LISTED = 200;

/** The steps next to the present one, and how many there are beyond. */
export function stepsAround({ past, present, future }: History, most = LISTED) {
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
