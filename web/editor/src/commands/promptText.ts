/** Changes the text of a field as typing would. */
import { commented } from "../prompts/comments";
import type { Selected } from "../prompts/weights";
import { notify } from "../state/live";

/**
 * Sets the text and selection of a field and fires its input event. Runs after the current event,
 * within which React would restore the old text.
 */
export function write(area: HTMLTextAreaElement, { text, start, end }: Selected): void {
  queueMicrotask(() => {
    area.setRangeText(text, 0, area.value.length);
    area.setSelectionRange(start, end);
    area.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

export function writtenIn({ value, selectionStart, selectionEnd }: HTMLTextAreaElement): Selected {
  return { text: value, start: selectionStart, end: selectionEnd };
}

/** Comments out, or uncomments, the selected lines of the focused prompt. */
export function toggleComment(): void {
  const area = document.activeElement;
  if (!(area instanceof HTMLTextAreaElement)) return notify("focus a prompt to comment lines out");
  write(area, commented(writtenIn(area)));
}
