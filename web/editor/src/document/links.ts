/**
 * Links and cuts. A link is told of in several places: among the links, at both of its ends, at the
 * boundary of a subgraph, and by the reroutes that it runs through. All of them change here.
 */
import { isObject, type Json, type JsonObject, listOf, numberFrom } from "../json";
import { type Doc, idOf, linksOf } from "./model";
import { counted, lastOf, rawId, withNodes, withSlot } from "./raw";
import { boundariesOf } from "./scope";

export interface End {
  readonly node: string;
  readonly slot: number;
}

/** Links an output to an input; what the input was linked to before is cut. */
export function connect(graph: Doc, from: End, to: End, type: string): Doc {
  const taken = linksOf(graph).filter((link) => link.to === to.node && link.toSlot === to.slot);
  const free = removeLinks(graph, new Set(taken.map((link) => link.id)));
  const id = Math.max(lastOf(graph, "link"), ...linksOf(graph).map((link) => link.id)) + 1;
  const [source, target] = [rawId(free, from.node), rawId(free, to.node)];
  const link: Json = isVersionOne(graph)
    ? {
        id,
        origin_id: source,
        origin_slot: from.slot,
        target_id: target,
        target_slot: to.slot,
        type,
      }
    : [id, source, from.slot, target, to.slot, type];
  const linked = withNodes(free, (raw) => {
    let node = raw;
    if (idOf(raw.id) === from.node)
      node = withSlot(node, "outputs", from.slot, (slot) => added(slot, "links", id));
    if (idOf(raw.id) === to.node)
      node = withSlot(node, "inputs", to.slot, (slot) => ({ ...slot, link: id }));
    return node;
  });
  const told = boundariesOf(linked).reduce<Doc>((next, { id: boundary, side }) => {
    const end = side === "inputs" ? from : to;
    return boundary === end.node
      ? withSlot(next, side, end.slot, (slot) => added(slot, "linkIds", id))
      : next;
  }, linked);
  return { ...counted(told, "link", id), links: [...listOf(told.links), link] };
}

export function removeLinks(graph: Doc, links: ReadonlySet<number>): Doc {
  if (links.size === 0) return graph;
  const gone = (id: Json | undefined) => links.has(numberFrom(id, Number.NaN));
  const cut = withNodes(graph, (raw) => {
    const inputs = changed(raw.inputs, (slot) =>
      gone(slot.link) ? { ...slot, link: null } : slot,
    );
    const outputs = changed(raw.outputs, (slot) => without(slot, "links", gone));
    return inputs === raw.inputs && outputs === raw.outputs
      ? raw
      : { ...raw, ...(inputs && { inputs }), ...(outputs && { outputs }) };
  });
  const rest = listOf(cut.links).filter(
    (raw) => !gone(Array.isArray(raw) ? raw[0] : isObject(raw) ? raw.id : undefined),
  );
  return withoutReroutes(withoutAtBoundary({ ...cut, links: rest }, gone), gone);
}

type Gone = (id: Json | undefined) => boolean;

function withoutAtBoundary(graph: Doc, gone: Gone): Doc {
  return boundariesOf(graph).reduce<Doc>((next, { side }) => {
    const slots = changed(next[side], (slot) => without(slot, "linkIds", gone));
    return slots === next[side] || slots === undefined ? next : { ...next, [side]: slots };
  }, graph);
}

/** A reroute through which no link runs goes with the last one. v0.4 keeps them in `extra`. */
function withoutReroutes(graph: Doc, gone: Gone): Doc {
  const pruned = (holder: JsonObject): JsonObject => {
    const reroutes = listOf(holder.reroutes);
    const kept = reroutes.flatMap((raw) => {
      const next = isObject(raw) ? without(raw, "linkIds", gone) : raw;
      return isObject(next) && next !== raw && listOf(next.linkIds).length === 0 ? [] : [next];
    });
    const extensions = listOf(holder.linkExtensions);
    const left = extensions.filter((raw) => !(isObject(raw) && gone(raw.id)));
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

function without(raw: JsonObject, key: string, gone: Gone): JsonObject {
  const ids = listOf(raw[key]);
  return ids.some(gone) ? { ...raw, [key]: ids.filter((id) => !gone(id)) } : raw;
}

/** Changes the slots of a list; the list itself stays when none of them changes. */
function changed(
  slots: Json | undefined,
  change: (slot: JsonObject) => JsonObject,
): Json | undefined {
  const before = listOf(slots);
  const after = before.map((slot) => (isObject(slot) ? change(slot) : slot));
  return after.every((slot, number) => slot === before[number]) ? slots : after;
}
