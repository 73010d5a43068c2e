/** Adds a reroute to a link at the clicked point. */
import type { Place } from "../../document/commands";
import type { Doc } from "../../document/model";
import { addReroute, reroutesOf, throughOf } from "../../document/reroutes";
import { drawnLinks, lineOf, nearestPart } from "../links/geometry";

/** `at`: a point on the drawn link. */
export function withReroute(graph: Doc, link: number, at: Place): Doc {
  const point = { x: Math.round(at.x), y: Math.round(at.y) };
  const drawn = drawnLinks().find(({ id }) => id === link);
  const line = drawn === undefined ? [] : lineOf(drawn);
  const [start, end] = [line[0], line.at(-1)];
  if (start === undefined || end === undefined) return graph;
  const places = new Map(reroutesOf(graph).map((one) => [one.id, one]));
  const between = (throughOf(graph).get(link) ?? []).flatMap((id) => places.get(id) ?? []);
  return addReroute(graph, link, point, nearestPart([start, ...between, end], at).part);
}
