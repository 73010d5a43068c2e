/** Adds and removes fields of the form of the graph in view. */
import { type FormField, raiseInForm, toggleInForm } from "../../document/form";
import { notify } from "../../state/live";
import { currentField } from "../fields";
import { change } from "./selection";

/** Toggles the current field in the form. */
export function chooseField(): void {
  const field = currentField();
  if (field === null) return notify("point at a field or focus it to add it to the form");
  toggleField(field);
}

export function toggleField({ node, widget }: FormField): void {
  change(`${widget} in the form`, (graph) => toggleInForm(graph, { node, widget }));
}

export function raiseField(field: FormField): void {
  change("order of the form", (graph) => raiseInForm(graph, field));
}
