"""Fields of Square's requests: names, lengths, enums and required fields of Square's OpenAPI document.

Document of 2025-08-20, and three kinds of additions: *words*: rules in the document's descriptions,
not in schemas (metadata, timestamps, percentages, 45 characters of a refund's key, 100
orders, 1000 results, types of external payments, one fulfillment); *SDK*: additions of API version
2026-09-16, from Square's SDK; *judgement*: an amount has a currency and is not below zero.

A table is a name and fields, each ``name[!][[]][:longest | :least..most][=kind]``: ``!`` required,
``[]`` an array, ``-`` read-only; limits are of a text's characters, a number, or an array's
elements; a kind is a name in ``_KINDS``, ``A|B|C``, or a table; the default is a text.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from testkit.vendors.fields import Field, Tables, choice, text

#: First API version here with IN_STORE fulfillments and nested modifiers.
IN_STORE_VERSION = "2026-09-16"

_KINDS: Mapping[str, Field] = {
    "integer": Field("integer"),
    "boolean": Field("boolean"),
    # Objects without rules here: measurement units, blocklists, shipments, customers.
    "any": Field("any"),
    "TIMESTAMP": text(pattern=r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"),
    "DURATION": text(pattern=r"P(?!$)(\d+W)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?"),
    "QUANTITY": text(pattern=r"\d+(\.\d{1,5})?"),
    "PERCENT": text(pattern=r"\d+(\.\d+)?"),
    "WHOLE": text(pattern="[0-9]+"),
    "CURRENCY": text(pattern="[A-Z]{3}"),
    "COUNTRY": text(pattern="[A-Z]{2}"),
    "METADATA": Field("map", longest=255, most=10, longest_name=60),
    "EXTERNAL_TYPE": choice(
        "CHECK BANK_TRANSFER OTHER_GIFT_CARD CRYPTO SQUARE_CASH SOCIAL EXTERNAL EMONEY CARD "
        "STORED_BALANCE FOOD_VOUCHER OTHER"
    ),
}
_FIELD = re.compile(r"(-?)(\w+)(!?)(\[\])?(?::(?:(\d+)\.\.)?(\d*))?(?:=([\w|]+))?")


def read(tables: str) -> Tables:
    """The tables of a text: names at the margin, fields below."""
    found: dict[str, dict[str, Field]] = {}
    for line in tables.strip().splitlines():
        if not line.startswith(" "):
            found[line] = fields = {}
            continue
        for word in line.split():
            name, field = _read(word)
            fields[name] = field
    return found


def _read(word: str) -> tuple[str, Field]:
    match = _FIELD.fullmatch(word)
    assert match is not None, word
    minus, name, required, array, least, most, kind = match.groups()
    if minus:
        return name, Field("any", read_only=True)
    if "|" in (kind or ""):
        field = choice(kind.replace("|", " "))
    else:
        field = _KINDS.get(kind, Field(kind)) if kind else text()
    limits = ("fewest", "most") if array else ("shortest", "longest")
    if field.type == "integer":
        limits = ("lowest", "highest")
    given: Mapping[str, Any] = dict(zip(limits, (least, most), strict=True))
    numbers: Mapping[str, Any] = {limit: int(number) for limit, number in given.items() if number}
    return name, replace(field, required=bool(required), many=bool(array), **numbers)


TABLES = read("""
CreateOrderRequest
    order=Order idempotency_key:192
CalculateOrderRequest
    order!=Order proposed_rewards[]=any
UpdateOrderRequest
    order=Order fields_to_clear[] idempotency_key:192
PayOrderRequest
    idempotency_key!:192 order_version=integer payment_ids[]
BatchRetrieveOrdersRequest
    location_id order_ids![]:1..100
SearchOrdersRequest
    location_ids[]:10 cursor query=SearchOrdersQuery limit:1..1000=integer return_entries=boolean
SearchOrdersQuery
    filter=SearchOrdersFilter sort=SearchOrdersSort
SearchOrdersFilter
    state_filter=SearchOrdersStateFilter date_time_filter=SearchOrdersDateTimeFilter
    fulfillment_filter=SearchOrdersFulfillmentFilter source_filter=SearchOrdersSourceFilter
    customer_filter=SearchOrdersCustomerFilter
SearchOrdersStateFilter
    states![]=OPEN|COMPLETED|CANCELED|DRAFT
SearchOrdersDateTimeFilter
    created_at=TimeRange updated_at=TimeRange closed_at=TimeRange
TimeRange
    start_at=TIMESTAMP end_at=TIMESTAMP
SearchOrdersFulfillmentFilter
    fulfillment_types[]=PICKUP|SHIPMENT|DELIVERY
    fulfillment_states[]=PROPOSED|RESERVED|PREPARED|COMPLETED|CANCELED|FAILED
SearchOrdersSourceFilter
    source_names[]:10
SearchOrdersCustomerFilter
    customer_ids[]:10
SearchOrdersSort
    sort_field!=CREATED_AT|UPDATED_AT|CLOSED_AT sort_order=DESC|ASC
Order
    location_id! reference_id:40 source=OrderSource customer_id:191 line_items[]=OrderLineItem
    taxes[]=OrderLineItemTax discounts[]=OrderLineItemDiscount service_charges[]=OrderServiceCharge
    fulfillments[]:1=Fulfillment metadata=METADATA state=OPEN|COMPLETED|CANCELED|DRAFT
    version=integer ticket_name:30 pricing_options=OrderPricingOptions -id -returns -return_amounts
    -net_amounts -rounding_adjustment -tenders -refunds -created_at -updated_at -closed_at
    -total_money -total_tax_money -total_discount_money -total_tip_money -total_service_charge_money
    -rewards -net_amount_due_money
OrderSource
    name
OrderLineItem
    uid:60 name:512 quantity!:12=QUANTITY quantity_unit=OrderQuantityUnit note:2000
    catalog_object_id:192 catalog_version=integer variation_name:400
    item_type=ITEM|CUSTOM_AMOUNT|GIFT_CARD metadata=METADATA modifiers[]=OrderLineItemModifier
    applied_taxes[]=OrderLineItemAppliedTax applied_discounts[]=OrderLineItemAppliedDiscount
    applied_service_charges[]=OrderLineItemAppliedServiceCharge base_price_money=Money
    pricing_blocklists=any -variation_total_price_money -gross_sales_money -total_tax_money
    -total_discount_money -total_money -total_service_charge_money
OrderLineItemModifier
    uid:60 catalog_object_id:192 catalog_version=integer name:255 quantity=WHOLE
    base_price_money=Money metadata=METADATA -total_price_money
OrderQuantityUnit
    measurement_unit=any precision:0..5=integer catalog_object_id catalog_version=integer
OrderLineItemTax
    uid:60 catalog_object_id:192 catalog_version=integer name:255
    type=UNKNOWN_TAX|ADDITIVE|INCLUSIVE percentage:10=PERCENT metadata=METADATA applied_money=Money
    scope=OTHER_TAX_SCOPE|LINE_ITEM|ORDER -auto_applied
OrderLineItemDiscount
    uid:60 catalog_object_id:192 catalog_version=integer name:255
    type=UNKNOWN_DISCOUNT|FIXED_PERCENTAGE|FIXED_AMOUNT|VARIABLE_PERCENTAGE|VARIABLE_AMOUNT
    percentage:10=PERCENT amount_money=Money applied_money=Money metadata=METADATA
    scope=OTHER_DISCOUNT_SCOPE|LINE_ITEM|ORDER -reward_ids -pricing_rule_id
OrderServiceCharge
    uid:60 name:512 catalog_object_id:192 catalog_version=integer percentage:10=PERCENT
    amount_money=Money
    calculation_phase=SUBTOTAL_PHASE|TOTAL_PHASE|APPORTIONED_PERCENTAGE_PHASE|APPORTIONED_AMOUNT_PHASE
    taxable=boolean applied_taxes[]=OrderLineItemAppliedTax metadata=METADATA
    treatment_type=LINE_ITEM_TREATMENT|APPORTIONED_TREATMENT
    scope=OTHER_SERVICE_CHARGE_SCOPE|LINE_ITEM|ORDER -applied_money -total_money -total_tax_money
    -type
OrderLineItemAppliedTax
    uid:60 tax_uid!:60 -applied_money
OrderLineItemAppliedDiscount
    uid:60 discount_uid!:60 -applied_money
OrderLineItemAppliedServiceCharge
    uid:60 service_charge_uid!:60 -applied_money
OrderPricingOptions
    auto_apply_discounts=boolean auto_apply_taxes=boolean
Fulfillment
    uid:60 type=PICKUP|SHIPMENT|DELIVERY state=PROPOSED|RESERVED|PREPARED|COMPLETED|CANCELED|FAILED
    metadata=METADATA pickup_details=FulfillmentPickupDetails shipment_details=any
    delivery_details=FulfillmentDeliveryDetails -line_item_application -entries
FulfillmentPickupDetails
    recipient=FulfillmentRecipient expires_at=TIMESTAMP auto_complete_duration=DURATION
    schedule_type=SCHEDULED|ASAP pickup_at=TIMESTAMP pickup_window_duration=DURATION
    prep_time_duration=DURATION note:500 cancel_reason:100 is_curbside_pickup=boolean
    curbside_pickup_details=FulfillmentPickupDetailsCurbsidePickupDetails -placed_at -accepted_at
    -rejected_at -ready_at -expired_at -picked_up_at -canceled_at
FulfillmentPickupDetailsCurbsidePickupDetails
    curbside_details:250 buyer_arrived_at=TIMESTAMP
FulfillmentDeliveryDetails
    recipient=FulfillmentRecipient schedule_type=SCHEDULED|ASAP deliver_at=TIMESTAMP
    prep_time_duration=DURATION delivery_window_duration=DURATION note:550 completed_at=TIMESTAMP
    cancel_reason:100 courier_pickup_at=TIMESTAMP courier_pickup_window_duration=DURATION
    is_no_contact_delivery=boolean dropoff_notes:550 courier_provider_name:255
    courier_support_phone_number:17 square_delivery_id:50 external_delivery_id:50
    managed_delivery=boolean -placed_at -in_progress_at -rejected_at -ready_at -delivered_at
    -canceled_at
FulfillmentRecipient
    customer_id:191 display_name:255 email_address:255 phone_number:17 address=Address
Address
    address_line_1 address_line_2 address_line_3 locality sublocality sublocality_2 sublocality_3
    administrative_district_level_1 administrative_district_level_2 administrative_district_level_3
    postal_code country=COUNTRY first_name last_name
Money
    amount!:0..=integer currency!=CURRENCY
CreatePaymentRequest
    source_id! idempotency_key!:45 amount_money!=Money tip_money=Money app_fee_money=Money
    delay_duration=DURATION delay_action autocomplete=boolean order_id customer_id location_id
    team_member_id reference_id:40 verification_token accept_partial_authorization=boolean
    buyer_email_address:255 buyer_phone_number billing_address=Address shipping_address=Address
    note:500 statement_description_identifier:20 cash_details=CashPaymentDetails
    external_details=ExternalPaymentDetails customer_details=any offline_payment_details=any
ExternalPaymentDetails
    type!:50=EXTERNAL_TYPE source!:255 source_id:255 source_fee_money=Money
CashPaymentDetails
    buyer_supplied_money!=Money change_back_money=Money
RefundPaymentRequest
    idempotency_key!:45 amount_money!=Money app_fee_money=Money payment_id destination_id
    unlinked=boolean location_id:50 customer_id reason:192 payment_version_token team_member_id:192
    cash_details=any external_details=any
CancelPaymentByIdempotencyKeyRequest
    idempotency_key!:45
ObtainTokenRequest
    client_id!:191 client_secret:2..1024 code:191 redirect_uri:2048 grant_type!:10..20
    refresh_token:2..1024 migration_token:2..1024 scopes[] short_lived=boolean code_verifier
RevokeTokenRequest
    client_id:191 access_token:2..1024 merchant_id revoke_only_access_token=boolean
""")

#: *SDK*.
_LATER = read("""
FulfillmentInStoreDetails
    note:500 recipient=FulfillmentRecipient
Fulfillment
    type=PICKUP|SHIPMENT|DELIVERY|IN_STORE in_store_details=FulfillmentInStoreDetails
OrderLineItemModifier
    parent_modifier_uid:60
SearchOrdersFulfillmentFilter
    fulfillment_types[]=PICKUP|SHIPMENT|DELIVERY|IN_STORE
""")
_LATEST: Tables = {
    **TABLES,
    **{name: {**TABLES.get(name, {}), **fields} for name, fields in _LATER.items()},
}


def tables(version: str) -> Tables:
    """The tables of an API version."""
    return _LATEST if version >= IN_STORE_VERSION else TABLES
