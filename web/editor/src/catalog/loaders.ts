/** Finds the node types that load a model, and the words of its notes that call it up. Pure. */
import { fieldsOf, isObject, parseJson } from "../json";
import type { Catalog, NodeType, Widget } from "./catalog";

export interface Loader {
  readonly type: NodeType;
  readonly widget: Widget;
}

/**
 * The types with a choice of all these models, the plainest first. Two kinds may have models of one
 * name: those whose choice is called like the kind, or one of its folders, come before.
 */
export function loadersOf(
  catalog: Catalog,
  models: readonly string[],
  called: readonly string[],
): readonly Loader[] {
  const words = called.map((name) => name.replace(/s$/, ""));
  const found = [...catalog.values()].flatMap((type) => {
    const widget = type.widgets.find(
      ({ kind, choices }) => kind === "choice" && models.every((name) => choices.includes(name)),
    );
    if (widget === undefined || models.length === 0) return [];
    const strange = words.some((word) => widget.name.startsWith(word)) ? 0 : 1;
    return [{ type, widget, rank: [strange, type.widgets.length, type.sockets.length] }];
  });
  return found.sort((one, other) => compared(one.rank, other.rank));
}

function compared(one: readonly number[], other: readonly number[]): number {
  const at = one.findIndex((value, place) => value !== other[place]);
  return at < 0 ? 0 : (one[at] ?? 0) - (other[at] ?? 0);
}

/** Where trainers write what calls a model up. */
const PHRASES = ["modelspec.trigger_phrase", "trigger_word", "trigger_words", "activation text"];
const TAGS = "ss_tag_frequency";
const MOST_TAGS = 12;

/** The trigger phrases of a model's notes; without any, the tags that it was trained on most. */
export function triggersOf(notes: Readonly<Record<string, string>>): readonly string[] {
  const phrases = PHRASES.flatMap((name) => (notes[name] ?? "").split(/[,\n]/));
  const said = [...new Set(phrases.map((phrase) => phrase.trim()))].filter((one) => one !== "");
  return said.length > 0 ? said : tagsIn(notes[TAGS] ?? "");
}

/** By how often they stand in all data sets: `{"set": {"tag": 12}}`. */
function tagsIn(text: string): readonly string[] {
  const counts = new Map<string, number>();
  try {
    for (const tags of Object.values(fieldsOf(parseJson(text))))
      for (const [tag, count] of isObject(tags) ? Object.entries(tags) : [])
        counts.set(tag.trim(), (counts.get(tag.trim()) ?? 0) + Number(count));
  } catch {
    return []; // a trainer's own form
  }
  return [...counts]
    .sort(([, one], [, other]) => other - one)
    .slice(0, MOST_TAGS)
    .map(([tag]) => tag);
}
