/** A search field that filters the entries of a panel. */
export function Filter({
  label = "filter",
  placeholder = "filter",
  value,
  onValue,
}: {
  readonly label?: string;
  readonly placeholder?: string;
  readonly value: string;
  readonly onValue: (value: string) => void;
}) {
  return (
    <input
      type="search"
      aria-label={label}
      placeholder={placeholder}
      value={value}
      onChange={(event) => onValue(event.target.value)}
    />
  );
}
