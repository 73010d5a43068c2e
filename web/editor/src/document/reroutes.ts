/**
 * Reads and changes the reroute points of links. A link names its last point, and each point names
 * the one before. v1.0 stores them in the graph, v0.4 in `extra`.
 */
import { fieldsOf, isObject, type Json, type JsonObject, listOf, numberFrom } from "../json";
import type { Place } from "./commands";
import { type Doc, linksOf } from "./model";

export interface Reroute extends Place {
  readonly id: number;
  /** The previous point towards the output; null for the first. */
  readonly parent: number | null;
}

const known = new WeakMap<Doc, readonly Reroute[]>();

export function reroutesOf(graph: Doc): readonly Reroute[] {
  const found = known.get(graph) ?? listOf(holderOf(graph).reroutes).flatMap(rerouteOf);
  known.set(graph, found);
  return found;
}

/** Returns the ids of each link's points by link id, starting at the output. */
export function throughOf(graph: Doc): ReadonlyMap<number, readonly number[]> {
  const points = new Map(reroutesOf(graph).map((one) => [one.id, one]));
  const found = new Map<number, readonly number[]>();
  if (points.size === 0) return found;
  for (const [link, last] of lastPoints(graph)) {
    const way: number[] = [];
    for (let at = points.get(last); at !== undefined && !way.includes(at.id);) {
      way.unshift(at.id);
      at = at.parent === null ? undefined : points.get(at.parent);
    }
    found.set(link, way);
  }
  return found;
}

/** Returns each link's points by link id, starting at the output. */
export function waysOf(graph: Doc): ReadonlyMap<number, readonly Reroute[]> {
  const points = new Map(reroutesOf(graph).map((one) => [one.id, one]));
  const way = (ids: readonly number[]) => ids.flatMap((id) => points.get(id) ?? []);
  return new Map([...throughOf(graph)].map(([link, ids]) => [link, way(ids)]));
}

/**
 * Replaces the reroutes of all links; a link without an entry gets none. Points may be from another
 * graph: links that start with the same points share them here.
 */
export function withWays(graph: Doc, ways: ReadonlyMap<number, readonly Reroute[]>): Doc {
  const before = waysOf(graph);
  const made: { id: number; parent: number | null; at: Reroute; links: number[] }[] = [];
  const lasts = new Map<number, number | null>([...before.keys()].map((link) => [link, null]));
  let free = Math.max(0, ...reroutesOf(graph).map(({ id }) => id));
  for (const [link, way] of ways) {
    let parent: number | null = null;
    for (const at of way) {
      let point = made.find((one) => one.at === at && one.parent === parent);
      if (point === undefined) made.push((point = { id: ++free, parent, at, links: [] }));
      point.links.push(link);
      parent = point.id;
    }
    if (parent !== null) lasts.set(link, parent);
  }
  if (lasts.size === 0) return graph;
  const gone = new Set([...before.values()].flat().map(({ id }) => id));
  const led = withHolder(graph, (holder) => ({
    ...holder,
    reroutes: [
      ...listOf(holder.reroutes).filter((raw) => !(isObject(raw) && gone.has(numberFrom(raw.id)))),
      ...made.map(({ id, parent, at, links }) =>
        relinked({ id, pos: [at.x, at.y], linkIds: links }, parent),
      ),
    ],
  }));
  return [...lasts].reduce((next, [link, last]) => withLast(next, link, last), led);
}

/**
 * Adds a point to a link after `behind` of its points. Other links through the next point go
 * through the new one, too.
 */
export function addReroute(graph: Doc, link: number, { x, y }: Place, behind = Infinity): Doc {
  const id = Math.max(0, ...reroutesOf(graph).map((one) => one.id)) + 1;
  const ways = throughOf(graph);
  const way = ways.get(link) ?? [];
  const [parent, next] = [way.slice(0, behind).at(-1), way[behind]];
  const led = [...ways].flatMap(([other, points]) =>
    next !== undefined && points.includes(next) ? [other] : [],
  );
  const made: JsonObject = {
    id,
    ...(parent === undefined ? {} : { parentId: parent }),
    pos: [x, y],
    linkIds: next === undefined ? [link] : led,
  };
  const added = withHolder(graph, (holder) => ({
    ...holder,
    reroutes: [
      ...listOf(holder.reroutes).map((raw) =>
        isObject(raw) && next !== undefined && raw.id === next ? relinked(raw, id) : raw,
      ),
      made,
    ],
  }));
  return next === undefined ? withLast(added, link, id) : added;
}

export function moveReroutes(graph: Doc, places: ReadonlyMap<number, Place>): Doc {
  if (places.size === 0) return graph;
  return withHolder(graph, (holder) => ({
    ...holder,
    reroutes: listOf(holder.reroutes).map((raw) => {
      const place = isObject(raw) ? places.get(numberFrom(raw.id, -1)) : undefined;
      return place === undefined || !isObject(raw) ? raw : { ...raw, pos: [place.x, place.y] };
    }),
  }));
}

/** Removes a point; its links continue from the point before it. */
export function removeReroute(graph: Doc, id: number): Doc {
  const gone = reroutesOf(graph).find((one) => one.id === id);
  if (gone === undefined) return graph;
  const without = withHolder(graph, (holder) => ({
    ...holder,
    reroutes: listOf(holder.reroutes)
      .filter((raw) => !(isObject(raw) && raw.id === id))
      .map((raw) => (isObject(raw) && raw.parentId === id ? relinked(raw, gone.parent) : raw)),
  }));
  const led = [...lastPoints(graph)].filter(([, last]) => last === id);
  return led.reduce((next, [link]) => withLast(next, link, gone.parent), without);
}

/** Returns whether reroutes are in the graph itself, as of v1.0. */
function isOwn(graph: Doc): boolean {
  const [first] = listOf(graph.links);
  return first === undefined ? numberFrom(graph.version) >= 1 : !Array.isArray(first);
}

function holderOf(graph: Doc): JsonObject {
  return isOwn(graph) ? graph : fieldsOf(graph.extra);
}

function withHolder(graph: Doc, change: (holder: JsonObject) => JsonObject): Doc {
  return isOwn(graph) ? change(graph) : { ...graph, extra: change(holderOf(graph)) };
}

function rerouteOf(raw: Json): readonly Reroute[] {
  if (!isObject(raw)) return [];
  const [x, y] = listOf(raw.pos);
  const parent = raw.parentId === undefined ? null : numberFrom(raw.parentId);
  return [{ id: numberFrom(raw.id), parent, x: numberFrom(x), y: numberFrom(y) }];
}

/** Returns the last point of each link with points. */
function lastPoints(graph: Doc): ReadonlyMap<number, number> {
  const entries = isOwn(graph) ? listOf(graph.links) : listOf(holderOf(graph).linkExtensions);
  const there = new Set(linksOf(graph).map(({ id }) => id));
  return new Map(
    entries
      .filter(isObject)
      .filter((raw) => raw.parentId !== undefined && there.has(numberFrom(raw.id, -1)))
      .map((raw) => [numberFrom(raw.id), numberFrom(raw.parentId)]),
  );
}

function withLast(graph: Doc, link: number, last: number | null): Doc {
  if (isOwn(graph))
    return {
      ...graph,
      links: listOf(graph.links).map((raw) =>
        isObject(raw) && raw.id === link ? relinked(raw, last) : raw,
      ),
    };
  return withHolder(graph, (holder) => {
    const others = listOf(holder.linkExtensions).filter(
      (raw) => !(isObject(raw) && raw.id === link),
    );
    const own = last === null ? [] : [{ id: link, parentId: last }];
    return { ...holder, linkExtensions: [...others, ...own] };
  });
}

function relinked({ parentId: _, ...raw }: JsonObject, parent: number | null): JsonObject {
  return parent === null ? raw : { ...raw, parentId: parent };
}
