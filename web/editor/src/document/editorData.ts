/** Stores this editor's own data in a file, in `extra.katz` of a graph. */
import { fieldsOf, type Json, type JsonObject } from "../json";
import type { Doc } from "./model";

const OWN = "katz";

export function editorDataOf(graph: Doc, key: string): JsonObject {
  return fieldsOf(fieldsOf(fieldsOf(graph.extra)[OWN])[key]);
}

/** Marks a document for the server, which then uses the node ids of the document. */
export function asPrompt(doc: Doc): Doc {
  const extra = fieldsOf(doc.extra);
  return { ...doc, extra: { ...extra, [OWN]: { ...fieldsOf(extra[OWN]), ids_stay: true } } };
}

/** Stores fields under a key; without fields, removes the key. */
export function withEditorData(
  graph: Doc,
  key: string,
  fields: Readonly<Record<string, Json>>,
): Doc {
  const { [OWN]: before, ...extra } = fieldsOf(graph.extra);
  const { [key]: _, ...others } = fieldsOf(before);
  const own = Object.keys(fields).length === 0 ? others : { ...others, [key]: fields };
  return { ...graph, extra: Object.keys(own).length === 0 ? extra : { ...extra, [OWN]: own } };
}
