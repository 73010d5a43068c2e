/**
 * Connects and removes links. The file records a link in several places: among the links, at both
 * ends, at a subgraph's boundary, and in its reroutes. This module updates all of them.
 */
import { fieldsOf, isObject, type Json, type JsonObject, listOf, numberFrom } from "../json";
import { type Doc, idOf, linksOf } from "./model";
import { counted, lastOf, rawId, withNodes, withSlot } from "./raw";
import { boundariesOf } from "./scope";

export interface End {
  readonly node: string;
  readonly slot: number;
}

export interface Ends {
  readonly from: End;
  readonly to: End;
  readonly type: string;
}

/** Links an output to an input and removes the input's previous link. */
export function connect(graph: Doc, from: End, to: End, type: string): Doc {
  const ends = { from, to, type };
  const free = removeLinks(graph, into(graph, [to]));
  const id = Math.max(lastOf(graph, "link"), ...linksOf(graph).map((link) => link.id)) + 1;
  const link = recorded(graph, id, ends, isVersionOne(graph) ? {} : []);
  return counted(withEnds({ ...free, links: [...listOf(free.links), link] }, id, ends), "link", id);
}

/**
 * Moves links to other ends and retains their ids and reroutes. Other links to the new inputs are
 * removed.
 */
export function moveLinks(graph: Doc, moved: ReadonlyMap<number, Ends>): Doc {
  const known = linksOf(graph).filter(({ id }) => moved.has(id));
  const targets = [...moved.values()].map(({ to }) => to);
  const taken = [...into(graph, targets)].filter((id) => !moved.has(id));
  const loose = withoutEnds(removeLinks(graph, new Set(taken)), (id) => moved.has(idFrom(id)));
  const links = listOf(loose.links).map((raw) => {
    const ends = moved.get(linkId(raw));
    return ends === undefined ? raw : recorded(loose, linkId(raw), ends, raw);
  });
  return known.reduce<Doc>(
    (next, { id }) => {
      const ends = moved.get(id);
      return ends === undefined ? next : withEnds(next, id, ends);
    },
    { ...loose, links },
  );
}

export function removeLinks(graph: Doc, links: ReadonlySet<number>): Doc {
  if (links.size === 0) return graph;
  const isRemoved: IsRemoved = (id) => links.has(idFrom(id));
  const cut = withoutEnds(graph, isRemoved);
  const rest = listOf(cut.links).filter((raw) => !links.has(linkId(raw)));
  return withoutReroutes({ ...cut, links: rest }, isRemoved);
}

/** Returns the links that lead to these inputs. */
function into(graph: Doc, inputs: readonly End[]): ReadonlySet<number> {
  const at = new Set(inputs.map(({ node, slot }) => `${slot} ${node}`));
  return new Set(
    linksOf(graph).flatMap(({ id, to, toSlot }) => (at.has(`${toSlot} ${to}`) ? [id] : [])),
  );
}

function idFrom(raw: Json | undefined): number {
  return numberFrom(raw, Number.NaN);
}

function linkId(raw: Json): number {
  return idFrom(Array.isArray(raw) ? (raw as readonly Json[])[0] : isObject(raw) ? raw.id : null);
}

/**
 * Returns a link in the file's format. `raw`: its previous form, or an empty one of the file's
 * version.
 */
function recorded(graph: Doc, id: number, { from, to, type }: Ends, raw: Json): Json {
  const [source, target] = [rawId(graph, from.node), rawId(graph, to.node)];
  return Array.isArray(raw)
    ? [id, source, from.slot, target, to.slot, type, ...(raw as readonly Json[]).slice(6)]
    : {
        ...fieldsOf(raw),
        id,
        origin_id: source,
        origin_slot: from.slot,
        target_id: target,
        target_slot: to.slot,
        type,
      };
}

/** Records a link at both of its ends. */
function withEnds(graph: Doc, id: number, { from, to }: Ends): Doc {
  const linked = withNodes(graph, (raw) => {
    let node = raw;
    if (idOf(raw.id) === from.node)
      node = withSlot(node, "outputs", from.slot, (slot) => added(slot, "links", id));
    if (idOf(raw.id) === to.node)
      node = withSlot(node, "inputs", to.slot, (slot) => ({ ...slot, link: id }));
    return node;
  });
  return boundariesOf(linked).reduce<Doc>((next, { id: boundary, side }) => {
    const end = side === "inputs" ? from : to;
    return boundary === end.node
      ? withSlot(next, side, end.slot, (slot) => added(slot, "linkIds", id))
      : next;
  }, linked);
}

/** Removes links from the records at their ends. */
function withoutEnds(graph: Doc, isRemoved: IsRemoved): Doc {
  const cut = withNodes(graph, (raw) => {
    const inputs = changed(raw.inputs, (slot) =>
      isRemoved(slot.link) ? { ...slot, link: null } : slot,
    );
    const outputs = changed(raw.outputs, (slot) => without(slot, "links", isRemoved));
    return inputs === raw.inputs && outputs === raw.outputs
      ? raw
      : { ...raw, ...(inputs && { inputs }), ...(outputs && { outputs }) };
  });
  return withoutAtBoundary(cut, isRemoved);
}

type IsRemoved = (id: Json | undefined) => boolean;

function withoutAtBoundary(graph: Doc, isRemoved: IsRemoved): Doc {
  return boundariesOf(graph).reduce<Doc>((next, { side }) => {
    const slots = changed(next[side], (slot) => without(slot, "linkIds", isRemoved));
    return slots === next[side] || slots === undefined ? next : { ...next, [side]: slots };
  }, graph);
}

/** Removes links from reroutes, and reroutes without a link. v0.4 stores these in `extra`. */
function withoutReroutes(graph: Doc, isRemoved: IsRemoved): Doc {
  const pruned = (holder: JsonObject): JsonObject => {
    const reroutes = listOf(holder.reroutes);
    const kept = reroutes.flatMap((raw) => {
      const next = isObject(raw) ? without(raw, "linkIds", isRemoved) : raw;
      return isObject(next) && next !== raw && listOf(next.linkIds).length === 0 ? [] : [next];
    });
    const extensions = listOf(holder.linkExtensions);
    const left = extensions.filter((raw) => !(isObject(raw) && isRemoved(raw.id)));
    const same =
      kept.length === reroutes.length && kept.every((raw, number) => raw === reroutes[number]);
    return {
      ...holder,
      ...(same ? {} : { reroutes: kept }),
      ...(left.length === extensions.length ? {} : { linkExtensions: left }),
    };
  };
  const next = pruned(graph);
  return isObject(next.extra) ? { ...next, extra: pruned(next.extra) } : next;
}

function isVersionOne(graph: Doc): boolean {
  const [first] = listOf(graph.links);
  return first === undefined ? numberFrom(graph.version) >= 1 : !Array.isArray(first);
}

function added(slot: JsonObject, key: string, id: number): JsonObject {
  return { ...slot, [key]: [...listOf(slot[key]), id] };
}

function without(raw: JsonObject, key: string, isRemoved: IsRemoved): JsonObject {
  const ids = listOf(raw[key]);
  return ids.some(isRemoved) ? { ...raw, [key]: ids.filter((id) => !isRemoved(id)) } : raw;
}

/** Changes the slots of a list; returns the same list if nothing changes. */
function changed(
  slots: Json | undefined,
  change: (slot: JsonObject) => JsonObject,
): Json | undefined {
  const before = listOf(slots);
  const after = before.map((slot) => (isObject(slot) ? change(slot) : slot));
  return after.every((slot, number) => slot === before[number]) ? slots : after;
}
