/** Moves documents between the page and files. */
import { printJson } from "../json";
import { activeSession, docOf, useDocuments } from "./documents";
import { openFiles } from "./running";

export function download(): void {
  const session = activeSession();
  if (session === null) return;
  const doc = docOf(session);
  const address = URL.createObjectURL(new Blob([printJson(doc, 2)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `${session.name}.json`;
  link.click();
  URL.revokeObjectURL(address);
  useDocuments.getState().update(session.id, { saved: doc });
}

export function chooseFiles(): void {
  const input = document.createElement("input");
  input.type = "file";
  input.multiple = true;
  input.accept = ".json,.png,.webp";
  input.onchange = () => void openFiles(input.files ?? []);
  input.click();
}
