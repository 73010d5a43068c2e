/** Shows a dialog over the page. Escape or a click outside closes it. */
import { useEffect, useRef } from "react";

export function Modal({
  label,
  onClose,
  children,
}: {
  readonly label: string;
  readonly onClose: () => void;
  readonly children: React.ReactNode;
}) {
  return (
    <Frame className="modal" label={label} onClose={onClose}>
      <h2>{label}</h2>
      {children}
    </Frame>
  );
}

/** Shows a dialog without a title. */
export function Frame({
  className,
  label,
  onClose,
  onKeyDown,
  children,
}: {
  readonly className: string;
  readonly label: string;
  readonly onClose: () => void;
  readonly onKeyDown?: (event: React.KeyboardEvent) => void;
  readonly children: React.ReactNode;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      className={className}
      aria-label={label}
      onCancel={(event) => {
        event.preventDefault(); // else the hidden dialog still gets keys for a moment
        onClose();
      }}
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && onClose()}
      onKeyDown={onKeyDown}
    >
      {children}
    </dialog>
  );
}
