/** What this editor keeps in a file that the format has no place for: `extra.katz` of a graph. */
import { fieldsOf, type Json, type JsonObject } from "../json";
import type { Doc } from "./model";

const OWN = "katz";

export function ownOf(graph: Doc, key: string): JsonObject {
  return fieldsOf(fieldsOf(fieldsOf(graph.extra)[OWN])[key]);
}

/** A document for the server, which is then to call its nodes by the ids that stand here. */
export function asPrompt(doc: Doc): Doc {
  const extra = fieldsOf(doc.extra);
  return { ...doc, extra: { ...extra, [OWN]: { ...fieldsOf(extra[OWN]), ids_stay: true } } };
}

/** Keeps fields; without any, the file is as it was before. */
export function withOwn(graph: Doc, key: string, fields: Readonly<Record<string, Json>>): Doc {
  const { [OWN]: before, ...extra } = fieldsOf(graph.extra);
  const { [key]: _, ...others } = fieldsOf(before);
  const own = Object.keys(fields).length === 0 ? others : { ...others, [key]: fields };
  return { ...graph, extra: Object.keys(own).length === 0 ? extra : { ...extra, [OWN]: own } };
}
