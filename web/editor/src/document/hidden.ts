/**
 * Hides links and shows a name at both of their ends: all links, links by type, or single links.
 */
import { textOf, textsOf } from "../json";
import { editorDataOf, withEditorData } from "./editorData";
import { type Doc, type DocLink, linksOf, nodesOf } from "./model";
import { boundariesOf } from "./scope";

const KEY = "hidden_links";

export interface HiddenLinks {
  readonly all: boolean;
  readonly types: ReadonlySet<string>;
  /** Names by link id; "" for the name of the output. */
  readonly names: ReadonlyMap<number, string>;
}

const known = new WeakMap<Doc, HiddenLinks>();

export function hiddenOf(graph: Doc): HiddenLinks {
  const found = known.get(graph);
  if (found !== undefined) return found;
  const { all, types, ...names } = editorDataOf(graph, KEY);
  const read: HiddenLinks = {
    all: all === true,
    types: new Set(textsOf(types)),
    names: new Map(Object.entries(names).map(([id, name]) => [Number(id), textOf(name)])),
  };
  known.set(graph, read);
  return read;
}

export function isHidden({ all, types, names }: HiddenLinks, link: DocLink): boolean {
  return all || types.has(link.type) || names.has(link.id);
}

export function hideAll(graph: Doc, all: boolean): Doc {
  return withHidden(graph, { ...hiddenOf(graph), all });
}

export function hideType(graph: Doc, type: string, on: boolean): Doc {
  const before = hiddenOf(graph);
  const others = [...before.types].filter((one) => one !== type);
  return withHidden(graph, { ...before, types: new Set(on ? [...others, type] : others) });
}

/** Hides links, with a name if one is given. */
export function hideLinks(graph: Doc, links: ReadonlySet<number>, name = ""): Doc {
  const before = hiddenOf(graph);
  const named = [...links].map((id): [number, string] => [id, name]);
  return withHidden(graph, { ...before, names: new Map([...before.names, ...named]) });
}

export function showLinks(graph: Doc, links: ReadonlySet<number>): Doc {
  const before = hiddenOf(graph);
  const names = new Map([...before.names].filter(([id]) => !links.has(id)));
  return withHidden(graph, { ...before, names });
}

/** Hides links that continue hidden links of another graph, under the same names. */
export function withNamesOf(other: Doc, continued: ReadonlyMap<number, number>, graph: Doc): Doc {
  return [...hiddenOf(other).names].reduce((next, [link, name]) => {
    const id = continued.get(link);
    return id === undefined ? next : hideLinks(next, new Set([id]), name);
  }, graph);
}

/** The name at the ends of a hidden link. */
export interface LinkBadge {
  readonly name: string;
  /**
   * Its index among the badges of its output; null if another link already shows the name there.
   */
  readonly row: number | null;
}

/** Returns the badges of hidden links by link id. */
export function badgesOf(graph: Doc): ReadonlyMap<number, LinkBadge> {
  const hidden = hiddenOf(graph);
  const badges = new Map<number, LinkBadge>();
  if (!hidden.all && hidden.types.size + hidden.names.size === 0) return badges;
  const outputs = outputNames(graph);
  const atOutput = new Map<string, string[]>();
  for (const link of linksOf(graph)) {
    if (!isHidden(hidden, link)) continue;
    const output = outputKey(link.from, link.fromSlot);
    const name = hidden.names.get(link.id) || outputs.get(output) || link.type;
    const there = atOutput.get(output) ?? [];
    badges.set(link.id, { name, row: there.includes(name) ? null : there.length });
    atOutput.set(output, [...new Set([...there, name])]);
  }
  return badges;
}

function outputKey(node: string, slot: number): string {
  return `${slot} ${node}`;
}

function outputNames(graph: Doc): ReadonlyMap<string, string> {
  return new Map([
    ...nodesOf(graph).flatMap(({ id, outputs }) =>
      outputs.map(({ label }, slot) => [outputKey(id, slot), label] as const),
    ),
    ...boundariesOf(graph).flatMap(({ id, slots }) =>
      slots.map(({ name }, slot) => [outputKey(id, slot), name] as const),
    ),
  ]);
}

/** Stores the hidden links without names of deleted ones. */
function withHidden(graph: Doc, { all, types, names }: HiddenLinks): Doc {
  const there = new Set(linksOf(graph).map(({ id }) => id));
  return withEditorData(graph, KEY, {
    ...Object.fromEntries([...names].filter(([id]) => there.has(id))),
    ...(all ? { all } : {}),
    ...(types.size > 0 ? { types: [...types] } : {}),
  });
}
