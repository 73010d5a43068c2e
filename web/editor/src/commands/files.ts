/** Downloads documents, and opens files chosen by the user. */
import { printJson } from "../json";
import { activeSession, docOf, useDocuments } from "../state/documents";
import { notify } from "../state/live";
import type { Action } from "./action";
import { openFiles } from "./run";

export function download(): void {
  const session = activeSession();
  if (session === null) return;
  const doc = docOf(session);
  saveFile(`${session.name}.json`, new Blob([printJson(doc, 2)], { type: "application/json" }));
  useDocuments.getState().update(session.id, { saved: doc });
}

/** Starts the download of a file. */
export function saveFile(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}

export function chooseFiles(): void {
  choose(".json,.png,.webp", true, (files) => void openFiles(files));
}

/** Asks for a settings file of ComfyUI's front end and imports it. */
export function chooseSettings(actions: readonly Action[]): void {
  choose(".json", false, ([file]) => {
    if (file !== undefined)
      import("./settingsImport")
        .then(({ importSettings }) => importSettings(file, actions))
        .catch(notify);
  });
}

function choose(accept: string, multiple: boolean, take: (files: readonly File[]) => void): void {
  const input = document.createElement("input");
  input.type = "file";
  input.multiple = multiple;
  input.accept = accept;
  input.onchange = () => take([...(input.files ?? [])]);
  input.click();
}
