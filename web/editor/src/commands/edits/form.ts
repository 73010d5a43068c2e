/** Adds and removes fields of the form of the graph in view. */
import { type FormField, raiseInForm, toggleInForm } from "../../document/form";
import { tell } from "../../state/live";
import { fieldMeant } from "../fields";
import { change } from "./selection";

/** Toggles the current field in the form. */
export function chooseField(): void {
  const field = fieldMeant();
  if (field === null) return tell("point at a field, or go into it, to show it in the form");
  toggleField(field);
}

export function toggleField({ node, widget }: FormField): void {
  change(`${widget} in the form`, (graph) => toggleInForm(graph, { node, widget }));
}

export function raiseField(field: FormField): void {
  change("order of the form", (graph) => raiseInForm(graph, field));
}
