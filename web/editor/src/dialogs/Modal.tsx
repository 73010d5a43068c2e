/** A dialog over the page: Escape and a click beside it close it. */
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

/** A dialog without a title of its own. */
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
        event.preventDefault(); // else it is hidden for a moment in which keys still belong to it
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
