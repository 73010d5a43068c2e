/** Moves documents between the page and files. */
import { printJson } from "../json";
import { activeSession, docOf, useDocuments } from "./documents";
import { openFiles } from "./running";

export function download(): void {
  const session = activeSession();
  if (session === null) return;
  const doc = docOf(session);
  saveFile(`${session.name}.json`, new Blob([printJson(doc, 2)], { type: "application/json" }));
  useDocuments.getState().update(session.id, { saved: doc });
}

/** Gives the person a file, as a download. */
export function saveFile(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}

export function chooseFiles(): void {
  const input = document.createElement("input");
  input.type = "file";
  input.multiple = true;
  input.accept = ".json,.png,.webp";
  input.onchange = () => void openFiles(input.files ?? []);
  input.click();
}
