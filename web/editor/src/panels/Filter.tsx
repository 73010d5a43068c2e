/** The field that filters what a panel lists. */
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
