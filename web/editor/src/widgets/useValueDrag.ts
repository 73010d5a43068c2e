/**
 * Copies a value to another field by dragging its row with Alt held. Alt leaves drags of labels and
 * fields as they are.
 */
import { type MouseEvent, type PointerEvent, useRef } from "react";
import { canTransfer, transferValue, fieldAt } from "../commands/fields";
import type { FieldName } from "../state/canvas";

const TARGET = "receives";

export function useValueDrag(from: FieldName) {
  const target = useRef<HTMLElement | null>(null);
  const started = useRef(false);
  const mark = (row: HTMLElement | null) => {
    target.current?.classList.remove(TARGET);
    target.current = row;
    row?.classList.add(TARGET);
  };
  return {
    onPointerDownCapture: (event: PointerEvent) => {
      if (event.button !== 0 || !event.altKey) return;
      event.stopPropagation();
      event.currentTarget.setPointerCapture(event.pointerId);
      started.current = true;
    },
    onMouseDownCapture: (event: MouseEvent) => {
      if (event.button === 0 && event.altKey) event.preventDefault(); // neither focus nor select
    },
    onPointerMove: (event: PointerEvent) => {
      if (!started.current) return;
      const below = document.elementFromPoint(event.clientX, event.clientY);
      const row = below?.closest<HTMLElement>("[data-widget]:not(.linked)") ?? null;
      const to = fieldAt(row);
      mark(to !== null && canTransfer(from, to) ? row : null);
    },
    onPointerUp: () => {
      const to = fieldAt(target.current);
      started.current = false;
      mark(null);
      if (to !== null) transferValue(from, to);
    },
    onPointerCancel: () => {
      started.current = false;
      mark(null);
    },
  };
}
