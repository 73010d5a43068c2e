/** Tracks which other users have this page's files open. */
import { create } from "zustand";
import { type Others, reportPresence } from "../server/presence";
import { useDocuments } from "./documents";

/** Milliseconds between reports; the server drops a page after three times as long. */
const REPORT_INTERVAL_MS = 15_000;
const PERSON = "katz.person";
const MAX_FILES = 100;
const MAX_NAME_CHARACTERS = 60;

export const useOthers = create<{ readonly others: Others }>(() => ({ others: {} }));

/** Returns the user's name in this browser; "" if unset or storage is unavailable. */
function person(): string {
  try {
    return localStorage.getItem(PERSON) ?? "";
  } catch {
    return "";
  }
}

export function askForName(): void {
  const name = window.prompt("Your name, shown to others with the same file open", person());
  if (name === null) return;
  try {
    localStorage.setItem(PERSON, name.trim().slice(0, MAX_NAME_CHARACTERS));
  } catch {
    // private windows may have no storage
  }
}

/** Lists the other users of a file; "" for none. */
export function othersText(names: readonly string[]): string {
  const known = [...new Set(names.filter((name) => name !== ""))];
  const unnamed = names.filter((name) => name === "").length;
  const pages = unnamed === 1 ? "another page" : `${unnamed} other pages`;
  return [...known, ...(unnamed > 0 ? [pages] : [])].join(", ");
}

export function watchPresence(): () => void {
  const page = crypto.randomUUID();
  let said = "";
  const open = () => {
    const files = useDocuments.getState().sessions.flatMap(({ file }) => file?.path ?? []);
    return [...new Set(files)].slice(0, MAX_FILES);
  };
  const say = (files = open()) => {
    if (files.length === 0 && said === "") return;
    said = files.join("\n");
    reportPresence(page, person(), files).then(
      (others) => useOthers.setState({ others }),
      () => {}, // the page shows a lost connection already
    );
  };
  const leave = () => say([]);
  const look = () => say();
  const unsubscribe = useDocuments.subscribe(() => {
    if (open().join("\n") !== said) say();
  });
  const timer = setInterval(look, REPORT_INTERVAL_MS);
  window.addEventListener("focus", look);
  window.addEventListener("pagehide", leave);
  return () => {
    unsubscribe();
    clearInterval(timer);
    window.removeEventListener("focus", look);
    window.removeEventListener("pagehide", leave);
    leave();
  };
}
