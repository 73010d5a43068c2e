/** Stores the fields that a graph's form shows, in the order in which they were added. */
import { fieldsOf, listOf, textOf } from "../json";
import { editorDataOf, withEditorData } from "./editorData";
import { type Doc, nodesOf } from "./model";

export interface FormField {
  readonly node: string;
  readonly widget: string;
}

const KEY = "form";

/** Returns the fields whose nodes exist. */
export function formOf(graph: Doc): readonly FormField[] {
  const there = new Set(nodesOf(graph).map(({ id }) => id));
  return listOf(editorDataOf(graph, KEY).fields)
    .map((raw) => ({ node: textOf(fieldsOf(raw).node), widget: textOf(fieldsOf(raw).widget) }))
    .filter(({ node }) => there.has(node));
}

/** Adds a field to the form, or removes it. */
export function toggleInForm(graph: Doc, field: FormField): Doc {
  const before = formOf(graph);
  const others = before.filter((one) => !isSame(one, field));
  const fields = others.length < before.length ? others : [...before, field];
  return withForm(graph, fields);
}

/** Moves a field up by one. */
export function raiseInForm(graph: Doc, field: FormField): Doc {
  const fields = [...formOf(graph)];
  const at = fields.findIndex((one) => isSame(one, field));
  if (at > 0) fields.splice(at - 1, 0, ...fields.splice(at, 1));
  return withForm(graph, fields);
}

function withForm(graph: Doc, fields: readonly FormField[]): Doc {
  const kept = fields.map(({ node, widget }) => ({ node, widget }));
  return withEditorData(graph, KEY, kept.length === 0 ? {} : { fields: kept });
}

function isSame(one: FormField, other: FormField): boolean {
  return one.node === other.node && one.widget === other.widget;
}
