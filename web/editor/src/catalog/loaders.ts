/** Finds the node types that load a model, and the trigger words in its metadata. Pure. */
import { fieldsOf, isObject, parseJson } from "../json";
import type { Catalog, NodeType, Widget } from "./catalog";

export interface Loader {
  readonly type: NodeType;
  readonly widget: Widget;
}

/**
 * Returns the types with a choice that lists all these models, the simplest first. Kinds may share
 * model names, so a choice named after the kind or one of its folders comes before others.
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

/** Metadata keys in which trainers write trigger phrases. */
const PHRASES = ["modelspec.trigger_phrase", "trigger_word", "trigger_words", "activation text"];
const TAGS = "ss_tag_frequency";
const MAX_TAGS = 12;

/**
 * Returns the trigger phrases in a model's metadata; without any, its most frequent training tags.
 */
export function triggersOf(notes: Readonly<Record<string, string>>): readonly string[] {
  const phrases = PHRASES.flatMap((name) => (notes[name] ?? "").split(/[,\n]/));
  const said = [...new Set(phrases.map((phrase) => phrase.trim()))].filter((one) => one !== "");
  return said.length > 0 ? said : tagsIn(notes[TAGS] ?? "");
}

/** Returns the tags by frequency, summed over all datasets: `{"set": {"tag": 12}}`. */
function tagsIn(text: string): readonly string[] {
  const counts = new Map<string, number>();
  try {
    for (const tags of Object.values(fieldsOf(parseJson(text))))
      for (const [tag, count] of isObject(tags) ? Object.entries(tags) : [])
        counts.set(tag.trim(), (counts.get(tag.trim()) ?? 0) + Number(count));
  } catch {
    return []; // a format of another trainer
  }
  return [...counts]
    .sort(([, one], [, other]) => other - one)
    .slice(0, MAX_TAGS)
    .map(([tag]) => tag);
}
