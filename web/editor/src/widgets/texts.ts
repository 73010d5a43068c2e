/** Changes what is written in a field, as typing does. */
import { commented } from "../catalog/comments";
import type { Selected } from "../catalog/weights";
import { tell } from "../shell/live";

/**
 * Puts a text and a selection into a field, which tells of it by the event of typing: once the present
 * event is over, for React would put the old text back within it.
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

/** Comments out what is selected in the prompt that has the keyboard. */
export function toggleComment(): void {
  const area = document.activeElement;
  if (!(area instanceof HTMLTextAreaElement)) return tell("go into a prompt to comment lines out");
  write(area, commented(writtenIn(area)));
}
