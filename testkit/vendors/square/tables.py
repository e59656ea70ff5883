"""Fields of Square's requests: names, lengths, enums and required fields of Square's OpenAPI document.

Document of 2025-08-20, and three kinds of additions, each marked: *words*: a rule that the document's
descriptions state and its schemas do not (metadata, 45 characters of a refund's key, 100 orders,
timestamps); *SDK*: fields of API version 2026-09-16, taken from Square's own SDK; *judgement*: an
amount below zero is refused, as is a currency that is no three letters. ``any``: objects that no
order here needs (measurement units, blocklists, shipments, customers).
"""

from testkit.vendors.fields import Field, Table, Tables, choice, integer, many, text

#: API version whose SDK has IN_STORE fulfillments and nested modifiers.
IN_STORE_VERSION = "2026-09-16"

#: *Words*: RFC 3339; a whole number, or a decimal one with a unit; a decimal percentage.
TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"
DURATION = r"P(?!$)(\d+W)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?"
QUANTITY, PERCENT = r"\d+(\.\d{1,5})?", r"\d+(\.\d+)?"
EXTERNAL_TYPES = (
    "CHECK BANK_TRANSFER OTHER_GIFT_CARD CRYPTO SQUARE_CASH SOCIAL EXTERNAL EMONEY CARD "
    "STORED_BALANCE FOOD_VOUCHER OTHER"
)
BOOLEAN, MONEY = Field("boolean"), Field("Money")
UID: Table = {"uid": text(60)}
CATALOG: Table = {"catalog_object_id": text(192), "catalog_version": integer()}
#: *Words*: up to 10 entries, names of up to 60 characters, values of up to 255.
METADATA: Table = {"metadata": Field("map", longest=255, most=10, longest_name=60)}


def texts(names: str) -> Table:
    """Texts without a documented length."""
    return dict.fromkeys(names.split(), text())


def timestamps(names: str) -> Table:
    """Texts in the form of RFC 3339."""
    return dict.fromkeys(names.split(), text(pattern=TIMESTAMP))


def durations(names: str) -> Table:
    """Durations as in RFC 3339."""
    return dict.fromkeys(names.split(), text(pattern=DURATION))


def read_only(names: str) -> Table:
    """Fields that Square alone sets."""
    return dict.fromkeys(names.split(), Field("any", read_only=True))


TABLES: Tables = {
    "CreateOrderRequest": {"order": Field("Order"), "idempotency_key": text(192)},
    "CalculateOrderRequest": {
        "order": Field("Order", required=True),
        "proposed_rewards": many("any"),
    },
    "UpdateOrderRequest": {
        "order": Field("Order"),
        "fields_to_clear": many("text"),
        "idempotency_key": text(192),
    },
    "PayOrderRequest": {
        "idempotency_key": text(192, required=True),
        "order_version": integer(),
        "payment_ids": many("text"),
    },
    "BatchRetrieveOrdersRequest": {
        "order_ids": many("text", 100, fewest=1, required=True),
        **texts("location_id"),
    },
    "SearchOrdersRequest": {
        "location_ids": many("text", 10),
        "query": Field("SearchOrdersQuery"),
        "limit": integer(1, 1000),
        "return_entries": BOOLEAN,
        **texts("cursor"),
    },
    "SearchOrdersQuery": {"filter": Field("SearchOrdersFilter"), "sort": Field("SearchOrdersSort")},
    "SearchOrdersFilter": {
        "state_filter": Field("SearchOrdersStateFilter"),
        "date_time_filter": Field("SearchOrdersDateTimeFilter"),
        "fulfillment_filter": Field("SearchOrdersFulfillmentFilter"),
        "source_filter": Field("SearchOrdersSourceFilter"),
        "customer_filter": Field("SearchOrdersCustomerFilter"),
    },
    "SearchOrdersStateFilter": {
        "states": choice("OPEN COMPLETED CANCELED DRAFT", many=True, required=True)
    },
    "SearchOrdersDateTimeFilter": {
        "created_at": Field("TimeRange"),
        "updated_at": Field("TimeRange"),
        "closed_at": Field("TimeRange"),
    },
    "TimeRange": {**timestamps("start_at end_at")},
    "SearchOrdersFulfillmentFilter": {
        "fulfillment_types": choice("PICKUP SHIPMENT DELIVERY", many=True),
        "fulfillment_states": choice(
            "PROPOSED RESERVED PREPARED COMPLETED CANCELED FAILED", many=True
        ),
    },
    "SearchOrdersSourceFilter": {"source_names": many("text", 10)},
    "SearchOrdersCustomerFilter": {"customer_ids": many("text", 10)},
    "SearchOrdersSort": {
        "sort_field": choice("CREATED_AT UPDATED_AT CLOSED_AT", required=True),
        "sort_order": choice("DESC ASC"),
    },
    "Order": {
        "location_id": text(required=True),
        "reference_id": text(40),
        "source": Field("OrderSource"),
        "customer_id": text(191),
        "line_items": many("OrderLineItem"),
        "taxes": many("OrderLineItemTax"),
        "discounts": many("OrderLineItemDiscount"),
        "service_charges": many("OrderServiceCharge"),
        "fulfillments": many("Fulfillment", 1),
        **METADATA,
        "state": choice("OPEN COMPLETED CANCELED DRAFT"),
        "version": integer(),
        "ticket_name": text(30),
        "pricing_options": Field("OrderPricingOptions"),
        **read_only(
            "id returns return_amounts net_amounts rounding_adjustment tenders refunds created_at "
            "updated_at closed_at total_money total_tax_money total_discount_money "
            "total_tip_money total_service_charge_money rewards net_amount_due_money"
        ),
    },
    "OrderSource": {**texts("name")},
    "OrderLineItem": {
        **UID,
        "name": text(512),
        "quantity": text(12, required=True, pattern=QUANTITY),
        "quantity_unit": Field("OrderQuantityUnit"),
        "note": text(2000),
        **CATALOG,
        "variation_name": text(400),
        "item_type": choice("ITEM CUSTOM_AMOUNT GIFT_CARD"),
        **METADATA,
        "modifiers": many("OrderLineItemModifier"),
        "applied_taxes": many("OrderLineItemAppliedTax"),
        "applied_discounts": many("OrderLineItemAppliedDiscount"),
        "applied_service_charges": many("OrderLineItemAppliedServiceCharge"),
        "base_price_money": MONEY,
        "pricing_blocklists": Field("any"),
        **read_only(
            "variation_total_price_money gross_sales_money total_tax_money total_discount_money "
            "total_money total_service_charge_money"
        ),
    },
    "OrderLineItemModifier": {
        **UID,
        **CATALOG,
        "name": text(255),
        "base_price_money": MONEY,
        **METADATA,
        "quantity": text(pattern="[0-9]+"),
        **read_only("total_price_money"),
    },
    "OrderQuantityUnit": {
        "measurement_unit": Field("any"),
        "precision": integer(0, 5),
        "catalog_version": integer(),
        **texts("catalog_object_id"),
    },
    "OrderLineItemTax": {
        **UID,
        **CATALOG,
        "name": text(255),
        "type": choice("UNKNOWN_TAX ADDITIVE INCLUSIVE"),
        "percentage": text(10, pattern=PERCENT),
        **METADATA,
        "applied_money": MONEY,
        "scope": choice("OTHER_TAX_SCOPE LINE_ITEM ORDER"),
        **read_only("auto_applied"),
    },
    "OrderLineItemDiscount": {
        **UID,
        **CATALOG,
        "name": text(255),
        "type": choice(
            "UNKNOWN_DISCOUNT FIXED_PERCENTAGE FIXED_AMOUNT VARIABLE_PERCENTAGE VARIABLE_AMOUNT"
        ),
        "percentage": text(10, pattern=PERCENT),
        "amount_money": MONEY,
        "applied_money": MONEY,
        **METADATA,
        "scope": choice("OTHER_DISCOUNT_SCOPE LINE_ITEM ORDER"),
        **read_only("reward_ids pricing_rule_id"),
    },
    "OrderServiceCharge": {
        **UID,
        "name": text(512),
        **CATALOG,
        "percentage": text(10, pattern=PERCENT),
        "amount_money": MONEY,
        "calculation_phase": choice(
            "SUBTOTAL_PHASE TOTAL_PHASE APPORTIONED_PERCENTAGE_PHASE APPORTIONED_AMOUNT_PHASE"
        ),
        "taxable": BOOLEAN,
        "applied_taxes": many("OrderLineItemAppliedTax"),
        **METADATA,
        "treatment_type": choice("LINE_ITEM_TREATMENT APPORTIONED_TREATMENT"),
        "scope": choice("OTHER_SERVICE_CHARGE_SCOPE LINE_ITEM ORDER"),
        **read_only("applied_money total_money total_tax_money type"),
    },
    "OrderLineItemAppliedTax": {
        **UID,
        "tax_uid": text(60, required=True),
        **read_only("applied_money"),
    },
    "OrderLineItemAppliedDiscount": {
        **UID,
        "discount_uid": text(60, required=True),
        **read_only("applied_money"),
    },
    "OrderLineItemAppliedServiceCharge": {
        **UID,
        "service_charge_uid": text(60, required=True),
        **read_only("applied_money"),
    },
    "OrderPricingOptions": {"auto_apply_discounts": BOOLEAN, "auto_apply_taxes": BOOLEAN},
    "Fulfillment": {
        **UID,
        "type": choice("PICKUP SHIPMENT DELIVERY"),
        "state": choice("PROPOSED RESERVED PREPARED COMPLETED CANCELED FAILED"),
        **METADATA,
        "pickup_details": Field("FulfillmentPickupDetails"),
        "shipment_details": Field("any"),
        "delivery_details": Field("FulfillmentDeliveryDetails"),
        **read_only("line_item_application entries"),
    },
    "FulfillmentPickupDetails": {
        "recipient": Field("FulfillmentRecipient"),
        "schedule_type": choice("SCHEDULED ASAP"),
        "note": text(500),
        "cancel_reason": text(100),
        "is_curbside_pickup": BOOLEAN,
        "curbside_pickup_details": Field("FulfillmentPickupDetailsCurbsidePickupDetails"),
        **timestamps("expires_at pickup_at"),
        **durations("auto_complete_duration pickup_window_duration prep_time_duration"),
        **read_only(
            "placed_at accepted_at rejected_at ready_at expired_at picked_up_at canceled_at"
        ),
    },
    "FulfillmentPickupDetailsCurbsidePickupDetails": {
        "curbside_details": text(250),
        **timestamps("buyer_arrived_at"),
    },
    "FulfillmentDeliveryDetails": {
        "recipient": Field("FulfillmentRecipient"),
        "schedule_type": choice("SCHEDULED ASAP"),
        "note": text(550),
        "cancel_reason": text(100),
        "is_no_contact_delivery": BOOLEAN,
        "dropoff_notes": text(550),
        "courier_provider_name": text(255),
        "courier_support_phone_number": text(17),
        "square_delivery_id": text(50),
        "external_delivery_id": text(50),
        "managed_delivery": BOOLEAN,
        **timestamps("deliver_at completed_at courier_pickup_at"),
        **durations("prep_time_duration delivery_window_duration courier_pickup_window_duration"),
        **read_only("placed_at in_progress_at rejected_at ready_at delivered_at canceled_at"),
    },
    "FulfillmentRecipient": {
        "customer_id": text(191),
        "display_name": text(255),
        "email_address": text(255),
        "phone_number": text(17),
        "address": Field("Address"),
    },
    "Address": {
        "country": text(pattern="[A-Z]{2}"),
        **texts(
            "address_line_1 address_line_2 address_line_3 locality sublocality sublocality_2 "
            "sublocality_3 administrative_district_level_1 administrative_district_level_2 "
            "administrative_district_level_3 postal_code first_name last_name"
        ),
    },
    "Money": {
        "amount": integer(0, required=True),
        "currency": text(pattern="[A-Z]{3}", required=True),
    },
    "CreatePaymentRequest": {
        "source_id": text(required=True),
        "idempotency_key": text(45, required=True),
        "amount_money": Field("Money", required=True),
        "tip_money": MONEY,
        "app_fee_money": MONEY,
        "autocomplete": BOOLEAN,
        "reference_id": text(40),
        "accept_partial_authorization": BOOLEAN,
        "buyer_email_address": text(255),
        "billing_address": Field("Address"),
        "shipping_address": Field("Address"),
        "note": text(500),
        "statement_description_identifier": text(20),
        "cash_details": Field("CashPaymentDetails"),
        "external_details": Field("ExternalPaymentDetails"),
        "customer_details": Field("any"),
        "offline_payment_details": Field("any"),
        **durations("delay_duration"),
        **texts(
            "delay_action order_id customer_id location_id team_member_id verification_token "
            "buyer_phone_number"
        ),
    },
    "ExternalPaymentDetails": {
        "type": choice(EXTERNAL_TYPES, longest=50, required=True),
        "source": text(255, required=True),
        "source_id": text(255),
        "source_fee_money": MONEY,
    },
    "CashPaymentDetails": {
        "buyer_supplied_money": Field("Money", required=True),
        "change_back_money": MONEY,
    },
    "RefundPaymentRequest": {
        "idempotency_key": text(45, required=True),
        "amount_money": Field("Money", required=True),
        "app_fee_money": MONEY,
        "unlinked": BOOLEAN,
        "location_id": text(50),
        "reason": text(192),
        "team_member_id": text(192),
        "cash_details": Field("any"),
        "external_details": Field("any"),
        **texts("payment_id destination_id customer_id payment_version_token"),
    },
    "CancelPaymentByIdempotencyKeyRequest": {"idempotency_key": text(45, required=True)},
    "ObtainTokenRequest": {
        "client_id": text(191, required=True),
        "client_secret": text(1024, shortest=2),
        "code": text(191),
        "redirect_uri": text(2048),
        "grant_type": text(20, shortest=10, required=True),
        "refresh_token": text(1024, shortest=2),
        "migration_token": text(1024, shortest=2),
        "scopes": many("text"),
        "short_lived": BOOLEAN,
        **texts("code_verifier"),
    },
    "RevokeTokenRequest": {
        "client_id": text(191),
        "access_token": text(1024, shortest=2),
        "revoke_only_access_token": BOOLEAN,
        **texts("merchant_id"),
    },
}

#: *SDK*: what the later version has besides.
LATER: Tables = {
    "Fulfillment": {
        **TABLES["Fulfillment"],
        "type": choice("PICKUP SHIPMENT DELIVERY IN_STORE"),
        "in_store_details": Field("FulfillmentInStoreDetails"),
    },
    "FulfillmentInStoreDetails": {"note": text(500), "recipient": Field("FulfillmentRecipient")},
    "OrderLineItemModifier": {**TABLES["OrderLineItemModifier"], "parent_modifier_uid": text(60)},
}


def tables(version: str) -> Tables:
    """The tables of an API version."""
    return {**TABLES, **LATER} if version >= IN_STORE_VERSION else TABLES
